"""The extras of a step (routed experts, alternatives, sampling masks, ...) in its ``tokens``: both directions."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import msgspec

from rollout_trace.data.extras import JSONText, SamplingMask, TopTokenRows, TopTokens
from rollout_trace.data.model import Step, shared
from rollout_trace.data.trainer_tokens import TRAINER_VALUES, TrainerTokens, padded
from rollout_trace.file.arrays import FLOATS, IDS, ROWS, Form, as_form, decoded, fragment
from rollout_trace.file.line_format import BadLine
from rollout_trace.file.plain import dumps

if TYPE_CHECKING:
    from rollout_trace.data.extras import PolicySpan
    from rollout_trace.data.rows import AnyArray, RowSpan
    from rollout_trace.file.arrays import ArrayTable, DistinctRows
    from rollout_trace.file.records import MaskRecord, TokensRecord, TopRecord, TrainerRecord

_K = ("positions", "k")
_FORMS = {
    "top_tokens.ids": Form(IDS, _K),
    "top_tokens.logprobs": Form(FLOATS, _K),
    "sampling_mask.ids": Form(IDS, ("sum of counts",)),
    "sampling_mask.counts": Form(IDS, ("positions",)),
    "sampling_mask.logprobs": Form(FLOATS, ("sum of counts",)),
}
"""The arrays that stand in their step."""


# To the file


def extras_of(step: Step, at: int, rows: DistinctRows) -> dict[str, Any]:
    """The extras as fields of a step's ``tokens``, without those that it lacks.

    Raises:
        ValueError: an extra that was set by hand does not fit the step's ids, or is of another type than the field's.
    """
    top, mask, spans = step.top_tokens, step.sampling_mask, step.policy_spans
    found: dict[str, Any] = {}
    runs = rows.runs(at)
    for name in ("routed_experts", "prompt_logprobs"):
        if name in runs:
            found[name] = runs[name]
    if "prompt_top_tokens.ids" in runs:
        found["prompt_top_tokens"] = {name: runs[f"prompt_top_tokens.{name}"] for name in ("ids", "logprobs")}
    if top is not None:
        top = TopTokens(**_converted(top, "top_tokens"))
        found["top_tokens"] = _fragments(top)
    if mask is not None:
        mask = SamplingMask(**_converted(mask, "sampling_mask"))
        found["sampling_mask"] = _fragments(mask)
    if spans is not None:
        found["policy_spans"] = [[int(begin), int(end), _version(version)] for begin, end, version in spans]
    if found:
        _check_step(step, found, top, mask)
    return found


def _converted(group: TopTokens | SamplingMask, field: str) -> dict[str, Any]:
    """The arrays of a group by name, in the dtypes of the format."""
    values = {one.name: getattr(group, one.name) for one in fields(group)}
    return {
        name: None if value is None else as_form(value, f"{field}.{name}", _FORMS[f"{field}.{name}"])
        for name, value in values.items()
    }


def _fragments(group: TopTokens | SamplingMask) -> dict[str, Any]:
    arrays = ((one.name, getattr(group, one.name)) for one in fields(group))
    return {name: fragment(array) for name, array in arrays if array is not None}


def _version(version: Any) -> str | int:
    return version if isinstance(version, (str, int)) and not isinstance(version, bool) else str(version)


def _check_step(step: Step, found: dict[str, Any], top: TopTokens | None, mask: SamplingMask | None) -> None:
    """Raises ValueError where the extras would not be read back: they were set by hand, and do not fit."""
    prompt, completion = shared(step, "prompt_token_ids"), shared(step, "completion_token_ids")
    lengths = None if prompt is None else n_ids(prompt), None if completion is None else n_ids(completion)
    runs = found.get("prompt_top_tokens")
    given: dict[str, Any] = {
        "routed_experts": _rows(found.get("routed_experts")),
        "prompt_logprobs": _rows(found.get("prompt_logprobs")),
        "prompt_top_tokens": None if runs is None else (_rows(runs["ids"]), _rows(runs["logprobs"])),
        "top_tokens": top,
        "sampling_mask": mask,
        "policy_spans": step.policy_spans,
    }
    for name, value in given.items():
        problem = None if value is None else _CHECKS[name](value, *lengths)
        if problem is not None:
            raise ValueError(
                f"step {step.id}: {name}: {problem}. Set what cannot be trusted to None: "
                f"dataclasses.replace(step, {name}=None)."
            )


def n_ids(ids: Any) -> int:
    """Length of a span of ids, or of an array, without making an array of the span."""
    return ids.stop - ids.start if hasattr(ids, "stop") else len(ids)


def _rows(runs: list[list[int]] | None) -> int | None:
    return None if runs is None else sum(end - first for _, first, end in runs)


# From the file


def read_extras(record: TokensRecord, arrays: ArrayTable) -> dict[str, Any]:
    """The extras of a step as its fields, without those that the record lacks.

    Raises:
        BadLine: one is not as the format has it; the message begins with its path within ``tokens``.
    """
    found: dict[str, Any] = {}
    for name in ("routed_experts", "prompt_logprobs"):
        runs = getattr(record, name)
        if runs is not None:
            found[name] = _at(name, arrays.rows, runs, ROWS[name])
    top = record.prompt_top_tokens
    if top is not None:
        ids, logprobs = (
            _at(f"prompt_top_tokens.{name}", arrays.rows, runs, ROWS[f"prompt_top_tokens.{name}"])
            for name, runs in (("ids", top.ids), ("logprobs", top.logprobs))
        )
        found["prompt_top_tokens"] = TopTokenRows(ids, logprobs)
    if record.top_tokens is not None:
        found["top_tokens"] = TopTokens(**_arrays(record.top_tokens, "top_tokens"))
    if record.sampling_mask is not None:
        found["sampling_mask"] = SamplingMask(**_arrays(record.sampling_mask, "sampling_mask"))
    if record.policy_spans is not None:
        found["policy_spans"] = tuple(record.policy_spans)
    prompt, completion = record.prompt, record.sampled
    for name, value in found.items():
        problem = _CHECKS[name](_counted(name, value), prompt, completion)
        if problem is not None:
            raise BadLine("", f".{name}: {problem}", name.replace("_", "-"))
    return found


def _at(place: str, read: Any, *arguments: Any) -> Any:
    try:
        return read(*arguments)
    except BadLine as error:
        raise BadLine("", f".{place}: {error}", error.code) from error


def _arrays(record: TopRecord | MaskRecord, field: str) -> dict[str, AnyArray]:
    """The arrays of a group by name, without those that it lacks."""
    records = ((name, getattr(record, name)) for name in record.__struct_fields__)
    return {
        name: _at(f"{field}.{name}", decoded, one, _FORMS[f"{field}.{name}"])
        for name, one in records
        if one is not None
    }


def _counted(name: str, value: Any) -> Any:
    """Returns what the check of a field takes: of shared rows their number, which makes no array."""
    if name == "prompt_top_tokens":
        return (len(value.ids), len(value.logprobs)) if _width(value.ids) == _width(value.logprobs) else (-1, -1)
    return len(value) if name in ("routed_experts", "prompt_logprobs") else value


def _width(span: RowSpan) -> Any:
    return span.runs[0][0].rows(0, 0).shape[1:]


# A trainer's numbers, which stand beside ``tokens``


def trainer_json(trainer: TrainerTokens) -> dict[str, Any]:
    """A trainer's numbers as the field ``trainer`` of a step, or of a note's step."""
    found = {name: getattr(trainer, name) for name in TRAINER_VALUES}
    return {name: fragment(array) for name, array in found.items() if array is not None}


def check_trainer(step: Step, sampled: int | None) -> None:
    """Raises ValueError where a trainer's numbers were put into a step that they do not fit: they would not be read."""
    for name in TRAINER_VALUES:
        array = getattr(step.trainer, name)
        if array is not None and sampled is not None and len(array) != sampled:
            raise ValueError(
                f"step {step.id} has {sampled} completion tokens and {len(array)} {name}. Give one for each token."
            )


def read_trainer(record: TrainerRecord, sampled: int | None) -> TrainerTokens:
    """A trainer's numbers, with NaN for the tokens behind those that have one.

    Args:
        sampled: number of completion tokens of the step; None: not known.

    Raises:
        BadLine: an array is not as the format has it; the message begins with its path within ``trainer``.
    """
    found: dict[str, Any] = {}
    for name in TRAINER_VALUES:
        array = getattr(record, name)
        if array is not None:
            values = _at(name, decoded, array, Form(FLOATS, ("positions",)))
            if sampled is not None and len(values) > sampled:
                problem = f"expected at most {sampled} numbers, the tokens of the completion, got {len(values)}"
                raise BadLine("", f".{name}: {problem}", "trainer-length")
            found[name] = values if sampled is None else padded(values, sampled)
    return TrainerTokens(**found)


# Checks, which return what is wrong, or None. A length is None where the ids are not known.


def _check_experts(rows: int, prompt: int | None, completion: int | None) -> str | None:
    if prompt is None or completion is None or rows <= prompt + completion:
        return None
    return f"expected at most {prompt + completion} positions, the tokens of prompt and completion, got {rows}"


def _check_prompt(rows: int, prompt: int | None, _: int | None) -> str | None:
    if prompt is None or rows == prompt:
        return None
    return f"expected {prompt} positions, the tokens of the prompt, got {rows}"


def _check_prompt_top(sizes: tuple[int, int], prompt: int | None, completion: int | None) -> str | None:
    if sizes[0] != sizes[1] or sizes[0] < 0:
        return "expected ids and logprobs of one shape [positions, k], got two"
    return _check_prompt(sizes[0], prompt, completion)


def _check_completion(rows: int, completion: int | None) -> str | None:
    if completion is None or rows == completion:
        return None
    return f"expected {completion} positions, the tokens of the completion, got {rows}"


def _check_top(top: TopTokens, _: int | None, completion: int | None) -> str | None:
    if top.ids.shape != top.logprobs.shape:
        shapes = f"{list(top.ids.shape)} and {list(top.logprobs.shape)}"
        return f"expected ids and logprobs of one shape [positions, k], got {shapes}"
    return _check_completion(len(top.ids), completion)


def _check_mask(mask: SamplingMask, _: int | None, completion: int | None) -> str | None:
    if len(mask.counts) and int(mask.counts.min()) < 0:
        return f"expected counts of 0 and more, got {int(mask.counts.min())}"
    total = int(mask.counts.sum(dtype="int64"))
    for name, array in (("ids", mask.ids), ("logprobs", mask.logprobs)):
        if array is not None and len(array) != total:
            return f"expected {total} {name}, the sum of counts, got {len(array)}"
    return _check_completion(len(mask.counts), completion)


def _check_spans(spans: tuple[PolicySpan, ...], _: int | None, completion: int | None) -> str | None:
    for begin, end, _version in spans:
        if not 0 <= begin <= end or (completion is not None and end > completion):
            length = "its length" if completion is None else completion
            return f"expected positions 0 <= begin <= end <= {length} of the completion, got {[begin, end]}"
    return None


_CHECKS: dict[str, Any] = {
    "routed_experts": _check_experts,
    "prompt_logprobs": _check_prompt,
    "prompt_top_tokens": _check_prompt_top,
    "top_tokens": _check_top,
    "sampling_mask": _check_mask,
    "policy_spans": _check_spans,
}


# Alternatives as text


def json_line(text: JSONText) -> bytes:
    """The JSON as it may stand in a line.

    As it is, without line breaks; where servers sent what is no JSON (NaN, bytes that are no UTF-8), as its value.
    """
    data = text.data
    try:
        _raw.decode(data)
        # Not checked by the decoder where values are passed over.
        if not data.isascii():
            data.decode()
    except (msgspec.DecodeError, UnicodeDecodeError):
        return dumps(text.get())
    return data if b"\n" not in data and b"\r" not in data else data.translate(_SPACES)


_raw = msgspec.json.Decoder(msgspec.Raw)
_SPACES = bytes.maketrans(b"\n\r", b"  ")
"""Line breaks stand between values: in texts they are escaped."""


def alternatives(data: bytes) -> JSONText | None:
    """``top_logprobs`` of a line, not decoded; None for null. Raises ValueError: it is no list, or not UTF-8."""
    if data in (b"", b"null"):
        return None
    if not data.startswith(b"["):
        raise ValueError(f"expected a list, got {data[:60].decode('utf-8', 'replace')}")
    # Not checked where a value is passed over, and it would fail only when it is read.
    if not data.isascii():
        data.decode()
    return JSONText(data)
