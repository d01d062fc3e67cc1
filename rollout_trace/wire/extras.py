"""Extras on the wire (routed experts, sampling masks, scores of prompts, alternatives, versions of weights) as arrays.

Each converter returns its value, or an ``ExtraIssue`` where the bytes are not of the expected shape; none raises. They
take a field as the bytes of its JSON (``msgspec.Raw``), so that a large one is decoded only once, straight to an array.
What is converted here is aligned to the ids in align.py.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeAlias, TypeVar

import msgspec
from msgspec import Raw, Struct, json

from rollout_trace.data.extras import ExtraIssue, PolicySpan, SamplingMask, TopTokens
from rollout_trace.data.tokens import INT32_MAX, readonly
from rollout_trace.wire.lenient import NULL
from rollout_trace.wire.logprobs import id_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from rollout_trace.data.extras import ExpertArray
    from rollout_trace.data.tokens import FloatArray, IntArray

    AnyArray: TypeAlias = npt.NDArray[Any]

P = ParamSpec("P")
T = TypeVar("T")

_WRONG = (ValueError, TypeError, OverflowError, RecursionError, msgspec.MsgspecError)
"""Exceptions of a converter for bytes that are not what it reads."""
MAX_FILL: Final = 1 << 20
"""Filler that a rectangle of ragged rows may have besides as much as its values: one long row among many short ones
would otherwise take memory without bound."""

_RAWS = json.Decoder(list[Raw])
_IDS = json.Decoder(list[int])
_FLOATS = json.Decoder(list[float])
_NESTED = json.Decoder(list[list[list[int]]])
_NPY = re.compile(
    rb"\{'descr': '([^']{1,8})', 'fortran_order': (True|False), 'shape': \(([0-9, ]{0,64})\),? ?\}[ \n]*\Z"
)
_EXPERT_TYPES: Final = ("|u1", "<u2", "<i4")


class UnusableError(ValueError):
    """An extra is not what was expected: a sentence about it, and the code of its issue."""

    def __init__(self, message: str, code: str = "malformed") -> None:
        super().__init__(message)
        self.code = code


def returns_issue(field: str) -> Callable[[Callable[P, T]], Callable[P, T | ExtraIssue]]:
    """Decorates a function that raises where an extra is unusable: it returns the issue of this field instead."""

    def decorate(function: Callable[P, T]) -> Callable[P, T | ExtraIssue]:
        @wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> T | ExtraIssue:
            try:
                return function(*args, **kwargs)
            except UnusableError as error:
                return ExtraIssue(field=field, code=error.code, message=str(error))
            except _WRONG as error:
                text = f"`{field}` is not in the expected shape: {str(error)[:200]}"
                return ExtraIssue(field=field, code="malformed", message=text.rstrip(".") + ".")

        return guarded

    return decorate


# ---- routed experts


@returns_issue("routed_experts")
def experts_of(raw: Raw) -> ExpertArray:
    """Experts [positions, layers, k] from base64 of a ``.npy`` file (vLLM), or from nested lists (LMDeploy)."""
    if starts_with(raw, b"["):
        return _listed_experts(raw)
    data = base64_of(raw)
    kind, shape, begin = _npy_header(data)
    if kind not in _EXPERT_TYPES:
        raise UnusableError(f"experts of type {kind!r}; expected uint8, uint16 or int32.")
    return experts_from(data, kind, shape, begin)


def experts_from(data: bytes, kind: str, shape: Sequence[int], begin: int = 0) -> ExpertArray:
    """Experts from little-endian bytes, from ``begin`` on: a read-only view of them.

    Raises:
        UnusableError: the bytes have not this shape, or an expert is negative.
    """
    import numpy as np

    if len(shape) != 3:
        raise UnusableError(f"experts of shape {list(shape)}; expected [positions, layers, experts per token].")
    dtype = np.dtype(kind)
    # Compared before anything of this size is made: a shape can be of any size.
    if math.prod(shape) * dtype.itemsize != len(data) - begin:
        raise UnusableError(f"{len(data) - begin} bytes for the shape {list(shape)} of {dtype.name}.")
    found: AnyArray = np.frombuffer(data, dtype, math.prod(shape), begin).reshape(shape)
    if found.dtype.kind == "i" and found.size and found.min() < 0:
        raise UnusableError(f"an expert is {int(found.min())}; experts are numbered from 0.")
    experts: ExpertArray = readonly(found.astype(found.dtype.newbyteorder("="), copy=False))
    return experts


def _listed_experts(raw: Raw) -> ExpertArray:
    import numpy as np

    rows = _NESTED.decode(raw)
    sizes = {(len(layers), len(experts)) for layers in rows for experts in layers}
    if len(sizes) != 1 or any(len(layers) != next(iter(sizes))[0] for layers in rows) or (0, 0) in sizes:
        raise UnusableError("the lists of experts are empty, or differ in length.")
    found = np.array(rows, np.int64)
    if found.min() < 0 or found.max() > INT32_MAX:
        raise UnusableError(f"experts from {int(found.min())} to {int(found.max())}; expected 0 to {INT32_MAX}.")
    experts: ExpertArray = readonly(found.astype(np.int32))
    return experts


def base64_of(raw: Raw) -> bytes:
    """The bytes of a JSON string in base64.

    Raises:
        UnusableError: no string, or not base64.
    """
    if not starts_with(raw, b'"'):
        raise UnusableError(f"expected base64, got {bytes(memoryview(raw)[:40])!r}.")
    try:
        # Three times as fast as binascii, and refuses characters that are no base64 instead of skipping them.
        return _BASE64.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnusableError(f"not base64: {error}.") from None


_BASE64 = msgspec.json.Decoder(bytes)


def _npy_header(data: bytes) -> tuple[str, tuple[int, ...], int]:
    """Type, shape and beginning of the values of a ``.npy`` file, read without numpy's loader, which can unpickle."""
    if data[:6] != b"\x93NUMPY" or len(data) < 12:
        raise UnusableError("not a .npy file: it begins with other bytes.")
    wide = data[6] > 1
    begin = 12 if wide else 10
    end = begin + int.from_bytes(data[8:begin], "little")
    found = _NPY.match(data[begin : min(end, begin + 1024)])
    if end > len(data) or found is None:
        raise UnusableError("the header of its .npy file cannot be read.")
    if found[2] == b"True":
        raise UnusableError("its .npy file is in Fortran order, not in C order.")
    shape = tuple(int(size) for size in found[3].split(b",") if size.strip())
    return found[1].decode("ascii", "replace"), shape, end


# ---- masks


@returns_issue("sampling_mask")
def mask_of(chunks: Sequence[Raw], logprobs: Sequence[Raw] = ()) -> SamplingMask:
    """The mask of a completion from lists of rows, one list for each chunk. ``logprobs``: rows of the same lengths."""
    ids, counts = _joined(chunks, _IDS, array("i"))
    found = view_of(ids)
    if len(found) and found.min() < 0:
        raise UnusableError(f"a mask holds {int(found.min())}; ids are not negative.")
    if not logprobs:
        return SamplingMask(found, view_of(counts), None)
    values, lengths = _joined(logprobs, _FLOATS, array("f"))
    if lengths != counts:
        raise UnusableError("the rows of a mask and those of its logprobs differ in length.")
    return SamplingMask(found, view_of(counts), view_of(values))


def _joined(
    chunks: Sequence[Raw], row_of: json.Decoder[list[Any]], values: array[Any]
) -> tuple[array[Any], array[int]]:
    """The values of all rows of all chunks, appended to ``values``, and the length of each row."""
    counts = array("i")
    for chunk in chunks:
        for row in _RAWS.decode(chunk):
            before = len(values)
            values.extend(row_of.decode(row))
            counts.append(len(values) - before)
    return values, counts


# ---- tokens with logprobs


class _Scored(Struct, gc=False):
    """One alternative, with its id in the spellings of engines."""

    token: str | None = None
    id: int | None = None
    token_id: int | None = None
    logprob: float | None = None


class _Score(Struct, gc=False):
    logprob: float


_ENTRIES = json.Decoder(list[_Scored])
_BY_TOKEN = json.Decoder(dict[str, float])
_BY_ID = json.Decoder(dict[str, _Score])
_NAMES_IDS = re.compile(rb'"(?:token_)?id"\s*:\s*\d|"token_id:\d')
_KEY_IS_ID = re.compile(rb'"token_id:\d')
"""What the JSON of alternatives holds where they have ids: of a list, and of an object by token, where ``id`` is a
token as any other."""


class TopRows:
    """Rows of tokens with logprobs, which become ``TopTokens``."""

    __slots__ = ("_counts", "_ids", "_logprobs")

    def __init__(self) -> None:
        self._ids, self._logprobs, self._counts = array("i"), array("f"), array("i")

    def add(self, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """Appends a row.

        Raises:
            ValueError, TypeError, OverflowError: an id is no int32, or a logprob no number.
        """
        self._ids.extend(ids)
        self._logprobs.extend(logprobs)
        self._counts.append(len(ids))

    @property
    def width(self) -> int:
        """The length of the longest row."""
        return max(self._counts, default=0)

    def get(self) -> TopTokens:
        """The rows as two rectangles, the shorter ones filled.

        Raises:
            UnusableError: an id is negative, or the rows differ too much in length.
        """
        import numpy as np

        ids, logprobs, counts = view_of(self._ids), view_of(self._logprobs), view_of(self._counts)
        rows, width = len(counts), self.width
        if len(ids) and ids.min() < 0:
            raise UnusableError(f"an alternative has the id {int(ids.min())}; ids are not negative.")
        if rows * width == len(ids):
            return TopTokens(readonly(ids.reshape(rows, width)), readonly(logprobs.reshape(rows, width)))
        if rows * width > 2 * len(ids) + MAX_FILL:
            raise UnusableError(f"{rows} rows hold {len(ids)} alternatives, one of them {width}.")
        is_given = np.arange(width) < counts[:, None]
        filled = np.full((rows, width), -1, np.int32), np.full((rows, width), np.nan, np.float32)
        filled[0][is_given], filled[1][is_given] = ids, logprobs
        return TopTokens(readonly(filled[0]), readonly(filled[1]))


def has_ids(rows: Sequence[Raw]) -> bool:
    """Whether alternatives have ids, and not only texts: a test of the first row that is not empty."""
    first = next((row for row in rows if memoryview(row).nbytes > 4), None)
    return first is not None and (_KEY_IS_ID if starts_with(first, b"{") else _NAMES_IDS).search(first) is not None


def top_tokens_of(rows: Sequence[Raw], field: str = "top_tokens") -> TopTokens | ExtraIssue:
    """Alternatives from lists of objects with an id, or from objects with ``token_id:N`` as names."""
    return returns_issue(field)(_top_tokens)(rows)


def _top_tokens(rows: Sequence[Raw]) -> TopTokens:
    found = TopRows()
    for row in rows:
        if row == NULL:
            found.add((), ())
        elif starts_with(row, b"{"):
            by_token = _BY_TOKEN.decode(row)
            found.add([_required(id_of(token), token) for token in by_token], list(by_token.values()))
        else:
            entries = _ENTRIES.decode(row)
            # None among the logprobs is refused by the array.
            found.add([_entry_id(entry) for entry in entries], [entry.logprob for entry in entries])  # type: ignore[misc]
    return found.get()


def _entry_id(entry: _Scored) -> int:
    own = entry.token_id if entry.id is None else entry.id
    return _required(id_of(entry.token or ""), entry.token) if own is None else own


def _required(found: int | None, token: str | None) -> int:
    if found is None:
        raise UnusableError(f"the alternative {token!r:.60} has no id, others have one.")
    return found


@returns_issue("prompt_logprobs")
def prompt_scores_of(raw: Raw, prompt_ids: IntArray, *, keep_top: bool) -> tuple[FloatArray, TopTokens | None]:
    """Scores of a prompt from vLLM's ``prompt_logprobs``: null, then for each token an object by id.

    Returns:
        The logprobs of the prompt's own tokens, float32 [prompt]; and, with ``keep_top``, all tokens of each position.
    """
    rows = _RAWS.decode(raw)
    if len(rows) != len(prompt_ids):
        raise UnusableError(f"{len(rows)} prompt logprobs for {len(prompt_ids)} prompt tokens.", "not_aligned")
    own, top = array("f"), TopRows()
    for position, (row, token) in enumerate(zip(rows, prompt_ids.tolist(), strict=True)):
        # Nothing precedes the first token: it has no score.
        if not position and row == NULL:
            own.append(math.nan)
            top.add((), ())
            continue
        scores = {} if row == NULL else _BY_ID.decode(row)
        score = scores.get(str(token))
        if score is None:
            raise UnusableError(f"the prompt's token {token} is not among those at position {position}.", "not_aligned")
        own.append(score.logprob)
        if keep_top:
            top.add([int(name) for name in scores], [one.logprob for one in scores.values()])
    return checked_logprobs(view_of(own), "prompt"), top.get() if keep_top else None


@returns_issue("prompt_logprobs")
def prompt_logprobs_of(values: Sequence[float | None]) -> FloatArray:
    """Scores of a prompt from a list with one number for each token, None first: float32 [prompt]."""
    missing = next((at for at, value in enumerate(values) if value is None and at), None)
    if missing is not None:
        raise UnusableError(f"the logprob at position {missing} of the prompt is missing.")
    found = view_of(array("f", (math.nan if value is None else value for value in values)))
    return checked_logprobs(found, "prompt")


def checked_logprobs(found: FloatArray, of: str) -> FloatArray:
    """The logprobs, NaN among them being missing ones.

    Raises:
        UnusableError: one is infinite or positive.
    """
    import numpy as np

    wrong = np.flatnonzero(np.isinf(found) | (found > 0))
    if len(wrong):
        raise UnusableError(f"the logprob at position {int(wrong[0])} of the {of} is {float(found[wrong[0]])}.")
    return found


# ---- versions


@returns_issue("policy_spans")
def spans_of(versions: Any) -> tuple[PolicySpan, ...]:
    """Versions of the weights from ``[{"version", "start", "end"}]`` (vLLM, SGLang), as sent."""
    if not isinstance(versions, list):
        raise UnusableError(f"expected a list of spans, got {versions!r:.60}.")
    return tuple(_span_of(item) for item in versions)


def _span_of(item: Any) -> PolicySpan:
    if isinstance(item, dict):
        begin, end, version = item.get("start"), item.get("end"), item.get("version")
        if type(begin) is int and type(end) is int and isinstance(version, (str, int)) and type(version) is not bool:
            return PolicySpan(begin, end, version)
    raise UnusableError(f"a span is {item!r:.80}; expected version, start and end.")


# ---- arrays


def view_of(values: array[Any]) -> Any:
    """int32 or float32 as the array's own type is, read-only, on its memory."""
    import numpy as np

    dtype = np.int32 if values.typecode == "i" else np.float32
    return readonly(np.frombuffer(values, dtype) if len(values) else np.empty(0, dtype))


def starts_with(raw: Raw, byte: bytes) -> bool:
    """Whether this is the first byte of a value: its JSON type."""
    return bytes(memoryview(raw)[:1]) == byte
