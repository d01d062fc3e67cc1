"""Copies of records with their texts changed. No copy keeps token ids of a text that was changed.

Everything that does not change is shared with the original: objects, lists of messages, token segments.

Two things change texts: a user's rules (``change``, a function), in the fields that hold what was said; and the keys of
this process's clients (``change`` is None), which are cut out of every field. Nearly no step holds a key, so they are
first looked for in the JSON of all fields at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import fields, replace
from datetime import datetime
from operator import is_
from typing import Any, TypeAlias

from msgspec import Raw, json

from rollout_trace import credentials
from rollout_trace.data.exact_turn import ExactTurn
from rollout_trace.data.extras import EXTRAS, ExtraIssue, JSONText, PolicySpan, SamplingMask, TopTokenRows, TopTokens
from rollout_trace.data.lists import FrozenList, ListSpan, PackedTexts, TableSpan
from rollout_trace.data.model import (
    Attempt,
    Completion,
    Cost,
    ErrorInfo,
    Step,
    Task,
    TokenIssue,
    ToolCall,
    ToolRun,
    Usage,
    new_step,
)
from rollout_trace.data.rows import RowSpan
from rollout_trace.data.tokens import Span, as_int32
from rollout_trace.data.trajectory import TRAJECTORY_FIELDS, Trajectory, new_trajectory
from rollout_trace.data.user_values import MAX_DEPTH, json_key, safe_repr, to_builtin

Change: TypeAlias = Callable[[str, str], str]
"""Maps a text and its place (``messages[2].content``) to the text to write there."""

COMPLETION_CHANGED = TokenIssue(
    code="redacted", message="text of the completion was redacted: its token ids, which would spell it, were removed."
)
PROMPT_CHANGED = TokenIssue(
    code="redacted", message="text of the prompt was redacted: the token ids, which would spell it, were removed."
)
_LOST = ("prompt_token_ids", "completion_token_ids", "logprobs", "top_logprobs", "token_texts", *EXTRAS, "token_source",
         "logprobs_mode", "trainer", "request_bytes", "response_bytes")  # fmt: skip
NO_TOKENS: Mapping[str, Any] = {**dict.fromkeys(_LOST), "trainable": False}
"""The fields that a redacted step loses. The bodies hold texts and ids alike, and the alternatives their texts."""
_ARRAYS = (Span, RowSpan, TopTokenRows, TopTokens, SamplingMask)
"""Stored forms of numbers. Plain arrays are told by their ``dtype``."""
_RULED = frozenset((
    "sampling", "completion", "stop_reason", "token_texts", "error", "attempts", "metadata", "token_issue", "usage",
    "top_logprobs", "extra_issues", "extra", "exact_turn", "request_bytes", "response_bytes",
))  # fmt: skip
"""The fields of a step that a user's rules change, beside ``messages`` and ``tools``."""
_WITH_NUMBERS = frozenset({"completion", "metadata", "tool_runs", "task"})
"""Fields in which whole numbers are changed too."""
_IN_PROMPT = frozenset({"messages", "tools", "sampling"})
IN_COMPLETION = frozenset({"completion", "stop_reason", "token_texts"})
"""The fields whose texts the ids of a completion spell."""
_RULED_OF_TRAJECTORY = ("tool_runs", "error", "stop_reason", "task", "environment", "metadata")
_FIELDS_OF_TRAJECTORY = tuple(name for name in TRAJECTORY_FIELDS if name not in ("steps", "exchanges"))


def redacted_steps(steps: Iterable[Step], change: Change | None) -> list[Step]:
    """The steps of one trajectory with their texts changed; a step in which nothing changes is the same object.

    A step whose prompt or completion changes loses its token ids, logprobs, extras, lists in ``extra``, and bodies, is
    not trainable, and has the ``token_issue`` ``redacted``. So does a later step whose prompt ids repeat those of a
    completion that changed.
    """
    return list(map(StepRedaction(change).step, steps))


def redacted(trajectory: Trajectory, change: Change | None) -> Trajectory:
    """The trajectory with its texts changed as in ``redacted_steps``; itself if nothing changes.

    By rules are changed messages, tools, sampling values, completions, errors, tool runs, task data and metadata.
    Names, models, ids, and the numbers and times of the recorder are not: records are joined by them.
    """
    changed: dict[str, Any] = {}
    steps = redacted_steps(trajectory.steps, change)
    if not all(map(is_, steps, trajectory.steps)):
        changed["steps"] = steps
    names = _RULED_OF_TRAJECTORY if change is not None else _FIELDS_OF_TRAJECTORY
    values = {name: getattr(trajectory, name) for name in names}
    # As tuples, in which records stay records.
    values["tool_runs"] = tuple(values["tool_runs"])
    if change is not None or _hold_key(values.values()):
        by_name = {name: _changed(value, name, change) for name, value in values.items()}
        changed |= {name: value for name, value in by_name.items() if value is not values[name]}
    if not changed:
        return trajectory
    if "tool_runs" in changed:
        changed["tool_runs"] = list(changed["tool_runs"])
    return new_trajectory({**{name: getattr(trajectory, name) for name in TRAJECTORY_FIELDS}, **changed})


def changed_fields(values: Mapping[str, Any], change: Change | None = None) -> dict[str, Any]:
    """Those of a step's fields, as they are stored, whose texts change; without ``messages`` and ``tools``."""
    if change is None and not _hold_key(values.values()):
        return {}
    changed: dict[str, Any] = {}
    for name, value in values.items():
        if value is None or (change is not None and name not in _RULED):
            continue
        new = _changed(value, name, change)
        if new is not value:
            changed[name] = new
    if "top_logprobs" in changed:
        # Their ids too, which stand for the same texts.
        changed["top_tokens"] = None
    return changed


def _changed(value: Any, name: str, change: Change | None) -> Any:
    """Changes a field that is not of messages or tools."""
    everywhere, by = change is None, credentials.change if change is None else change
    if isinstance(value, _ARRAYS) or hasattr(value, "dtype"):
        return value
    if name == "top_logprobs":
        return _alternatives(value, by)
    if isinstance(value, PackedTexts):
        # The texts that tokens make together, to whichever of them a part belongs.
        return value if by(value.joined(), name) == value.joined() else None
    if isinstance(value, bytes):
        # None: ids of the text may stand beside it.
        text = value.decode("utf-8", "surrogateescape")
        return value if by(text, name) == text else None
    return change_record(value, name, by, everywhere=everywhere, numbers=name in _WITH_NUMBERS)


def _alternatives(values: Any, change: Change) -> Any:
    """The alternatives to the tokens; None where one of them would change: they are not texts to be mended."""
    # The same few words come again and again, and all have one place.
    known: dict[str, str] = {}

    def change_once(text: str, _: str) -> str:
        if text not in known:
            known[text] = change(text, "top_logprobs")
        return known[text]

    items = values.items() if isinstance(values, JSONText) else values
    return values if all(change_value(one, "", change_once) is one for one in items) else None


def _hold_key(values: Iterable[Any]) -> bool:
    """Returns whether values may hold a key of this process's clients: looked for in their JSON, at once."""
    if not credentials.any_known():
        return False
    try:
        data = _encode([value.decode("utf-8", "replace") if type(value) is bytes else value for value in values])
    except Exception:
        # What has no form in JSON, and code of a user's: looked at text by text.
        return True
    return credentials.found_in(data)


def _plain(value: Any) -> Any:
    if isinstance(value, PackedTexts):
        return value.joined()
    if isinstance(value, JSONText):
        # Escapes that not every encoder makes hide a key.
        return value.get() if b"\\u" in value.data or b"\\/" in value.data else Raw(value.data)
    if isinstance(value, _ARRAYS) or hasattr(value, "dtype"):
        return None
    raise TypeError


_encode = json.Encoder(enc_hook=_plain).encode


class StepRedaction:
    """Redacts the steps of one trajectory, in their order. They share messages: each is changed once."""

    def __init__(self, change: Change | None) -> None:
        self._change = change
        # With the object: while it is referenced, no other has its id.
        self._lists: dict[int, tuple[Any, list[Any], list[int]]] = {}
        """Lists that steps share, by ``id``: their changed copies so far, and the positions of what differs."""
        self._known: dict[int, tuple[Any, Any]] = {}
        """Messages that lists share, by ``id``, with what became of them."""
        self._gone: list[bytes] = []
        """Token ids of completions that were changed, newest last."""

    def step(self, step: Step) -> Step:
        """The next step, as ``redacted_steps`` changes it."""
        values = step.__getstate__()
        lists = {name: values.pop(name, None) for name in ("messages", "tools")}
        items = {name: self._items(value, name) for name, value in lists.items()}
        changed = {name: value for name, value in items.items() if value is not lists[name]}
        changed |= changed_fields(values, self._change)
        issue = self._issue_of(step, changed)
        if issue is not None:
            changed |= {**NO_TOKENS, "token_issue": issue, **_without_ids(step, changed)}
        return new_step({**step.__getstate__(), **changed}) if changed else step

    def _issue_of(self, step: Step, changed: Mapping[str, Any]) -> TokenIssue | None:
        if not IN_COMPLETION.isdisjoint(changed):
            ids = step.completion_token_ids
            if ids is not None and len(ids):
                self._gone.append(ids.tobytes())
            return COMPLETION_CHANGED
        # Of a prompt that was sent as ids, or that goes on from an answer that the server keeps, there is no text.
        is_repeated = self._gone and any(repeats(ids, self._gone) for ids in (step.prompt_token_ids, *_sent_ids(step)))
        return PROMPT_CHANGED if is_repeated or not _IN_PROMPT.isdisjoint(changed) else None

    def _items(self, values: Any, place: str) -> Any:
        """A list of messages or tools with its items changed; the same object where none is."""
        if values is None:
            return None
        items = values.items if isinstance(values, ListSpan) else values
        length = values.length if type(values) is ListSpan else len(items)
        _, new, differing = self._lists.setdefault(id(items), (items, [], []))
        for at in range(len(new), length):
            new.append(self._item(items[at], place, at))
            if new[at] is not items[at]:
                differing.append(at)
        runs = values.runs if isinstance(values, TableSpan) else ((0, length),)
        found = zip([bisect_left(differing, first) for first, _ in runs] if differing else (), runs, strict=False)
        if not any(at < len(differing) and differing[at] < end for at, (_, end) in found):
            return values
        if isinstance(values, TableSpan):
            return TableSpan(new, runs)
        return ListSpan(new, length) if isinstance(values, ListSpan) else FrozenList(new)

    def _item(self, item: Any, place: str, at: int) -> Any:
        known = self._known.get(id(item))
        if known is not None:
            return known[1]
        changed = item
        if self._change is not None or _hold_key((item,)):
            by = credentials.change if self._change is None else self._change
            changed = change_value(item, f"{place}[{at}]", by, numbers=place == "messages" and not _is_ids(item))
        if isinstance(item, dict):
            self._known[id(item)] = item, changed
        return changed


_ID_FIELDS = ("input_ids", "token_ids")


def _sent_ids(step: Step) -> Iterator[Any]:
    """The ids of a prompt that was sent as ids, where the engine's own do not stand for them."""
    lists = [step.sampling[name] for name in _ID_FIELDS if name in step.sampling] if step.sampling else []
    if step.messages and _is_ids(step.messages[0]):
        lists += step.messages if isinstance(step.messages[0], list) else [step.messages]
    for values in lists:
        with suppress(ValueError, TypeError, OverflowError):
            yield as_int32(values)


def _without_ids(step: Step, changed: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a redacted step that held ids or tokens of its text."""
    fields: dict[str, Any] = {}
    extra = changed.get("extra", step.extra)
    if isinstance(extra, Mapping):
        # Lists may hold the text token by token, in which no rule finds it.
        kept = {name: value for name, value in extra.items() if not _holds_list(value)}
        fields["extra"] = extra if len(kept) == len(extra) else kept or None
    sampling = changed.get("sampling", step.sampling)
    if sampling and not sampling.keys().isdisjoint(_ID_FIELDS):
        fields["sampling"] = {name: value for name, value in sampling.items() if name not in _ID_FIELDS}
    if step.messages and _is_ids(step.messages[0]):
        fields["messages"] = None
    return fields


def _holds_list(value: Any) -> bool:
    parts = [value]
    while parts:
        part = parts.pop()
        if isinstance(part, Mapping):
            parts += part.values()
        elif not isinstance(part, (str, int, float, bool, type(None))):
            return True
    return False


def _is_ids(item: Any) -> bool:
    """Returns whether an item of a prompt is token ids, or one of them: numbers that are no text."""
    return isinstance(item, int) or (isinstance(item, list) and bool(item) and isinstance(item[0], int))


def repeats(prompt: Any, gone: list[bytes]) -> bool:
    """Returns whether prompt ids hold the ids of one of these completions."""
    data = b"" if prompt is None or not gone else prompt.tobytes()
    for ids in reversed(gone if data else ()):
        at = data.find(ids)
        # Each id takes four bytes.
        while at % 4 and at != -1:
            at = data.find(ids, at + 1)
        if at != -1:
            return True
    return False


# Values, and parts of records


def change_value(value: Any, place: str, change: Change, *, numbers: bool = False, depth: int = 0) -> Any:
    """The value with every text in it changed, keys of objects included; the value itself where none does.

    What JSON has no form for (Pydantic objects, dataclasses, paths, ...) is taken as what a file would hold: its
    fields, or its ``repr``. ``numbers``: whole numbers are changed too, where their digits as a text would be.
    """
    if isinstance(value, str):
        # Without its subclass: an enum's member is written as its text, too.
        return _changed_as(value, value if type(value) is str else str.__str__(value), place, change)
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int):
        return _changed_as(value, _digits(value), place, change) if numbers else value
    if depth > MAX_DEPTH:
        # Also a value that contains itself. A file holds its repr.
        return _changed_as(value, safe_repr(value), place, change)
    if isinstance(value, Mapping):
        return _object(value, place, change, numbers, depth + 1)
    if isinstance(value, (Sequence, Set)) and not isinstance(value, (bytes, bytearray, memoryview, range)):
        return _list(value, place, change, numbers, depth + 1)
    return _foreign(value, place, change, numbers, depth + 1)


def _changed_as(value: Any, text: str, place: str, change: Change) -> Any:
    """What becomes of a value that is written as ``text``; the value itself where that does not change."""
    changed = change(text, place)
    return value if changed == text else changed


def _digits(value: int) -> str:
    try:
        return str(int(value))
    except ValueError:  # More digits than Python converts (sys.set_int_max_str_digits). A file holds them in hex.
        return hex(value)


def _object(value: Mapping[Any, Any], place: str, change: Change, numbers: bool, depth: int) -> Any:
    items: dict[Any, Any] = {}
    is_same = True
    for key, item in value.items():
        text = json_key(key)
        changed_key = _changed_as(text, text, f"{place}.{text} (key)", change)
        changed = change_value(item, f"{place}.{text}", change, numbers=numbers, depth=depth)
        if changed_key is not text:
            is_same, key, number = False, changed_key, 2
            # Two keys that become one text must not cost an item.
            while key in items:
                key, number = f"{changed_key} ({number})", number + 1
        is_same = is_same and changed is item
        items[key] = changed
    return value if is_same else items


def _list(value: Any, place: str, change: Change, numbers: bool, depth: int) -> Any:
    changed = [
        change_value(item, f"{place}[{at}]", change, numbers=numbers, depth=depth) for at, item in enumerate(value)
    ]
    return value if all(map(is_, changed, value)) else changed


def _foreign(value: Any, place: str, change: Change, numbers: bool, depth: int) -> Any:
    inside = to_builtin(value)
    if inside is value and (tolist := getattr(value, "tolist", None)) is not None:
        if getattr(getattr(value, "dtype", None), "kind", "O") in "biufc":
            return value
        inside = tolist()
    if inside is value:
        return _changed_as(value, safe_repr(value), place, change)
    changed = change_value(inside, place, change, numbers=numbers, depth=depth)
    return value if changed is inside else changed


_RULED_OF: Mapping[type, frozenset[str]] = {
    Completion: frozenset({"content", "reasoning", "refusal", "extra", "tool_calls"}),
    ToolCall: frozenset({"name", "arguments", "extra"}),
    ErrorInfo: frozenset({"type", "message", "code"}),
    TokenIssue: frozenset({"message"}),
    ExtraIssue: frozenset({"message"}),
    ExactTurn: frozenset({"detail"}),
    Attempt: frozenset({"error", "request_id"}),
    Usage: frozenset({"extra"}),
    Cost: frozenset(),
    Task: frozenset({"data"}),
    ToolRun: frozenset({"arguments", "result", "error"}),
}
"""By record: the fields that a user's rules change. Others join records: ids, roles, codes. Keys are cut there, too."""


def change_record(value: Any, place: str, change: Change, *, everywhere: bool = False, numbers: bool = False) -> Any:
    """``change_value`` of a field of a record: also of records in it, and tuples of them, which stay such.

    ``everywhere``: every field of a record is changed, not only those of ``_RULED_OF``. Numbers of errors are not.
    """
    if isinstance(value, tuple) and value and (type(value[0]) in _RULED_OF or type(value[0]) is PolicySpan):
        parts = [
            change_record(one, f"{place}[{at}]", change, everywhere=everywhere, numbers=numbers)
            for at, one in enumerate(value)
        ]
        return value if all(map(is_, parts, value)) else tuple(parts)
    if type(value) is PolicySpan:
        version = change_value(value.version, f"{place}.version", change)
        return value if version is value.version else value._replace(version=version)
    ruled = _RULED_OF.get(type(value))
    if ruled is None:
        return change_value(value, place, change, numbers=numbers)
    numbers = numbers and not isinstance(value, ErrorInfo)
    changed = {}
    for name in (item.name for item in fields(value)) if everywhere else ruled:
        old = getattr(value, name)
        if everywhere and isinstance(old, datetime):
            continue
        new = change_record(old, f"{place}.{name}", change, everywhere=everywhere, numbers=numbers)
        if new is not old:
            changed[name] = new
    return replace(value, **changed) if changed else value
