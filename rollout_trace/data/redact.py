"""Copies of records with their texts changed. No copy keeps token ids of a text that was changed.

Everything that does not change is shared with the original: objects, lists of messages, token segments.

Two things change texts: a user's rules (``change``, a function), in the fields that hold what was said; and the keys of
this process's clients (``change`` is None), which are cut out of every field. Nearly no step holds a key, so they are
first looked for in the JSON of all fields at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Raw, json

from rollout_trace import credentials
from rollout_trace.data.extras import EXTRAS, JSONText, SamplingMask, TopTokenRows, TopTokens
from rollout_trace.data.lists import FrozenList, ListSpan, PackedTexts, TableSpan
from rollout_trace.data.model import Step, TokenIssue, new_step
from rollout_trace.data.rows import RowSpan
from rollout_trace.data.texts import Change, change_record, change_value
from rollout_trace.data.tokens import Span, as_int32
from rollout_trace.data.trajectory import TRAJECTORY_FIELDS, Trajectory, new_trajectory

COMPLETION_CHANGED = TokenIssue(
    code="redacted", message="text of the completion was redacted: its token ids, which would spell it, were removed."
)
PROMPT_CHANGED = TokenIssue(
    code="redacted",
    message="text of the prompt was redacted: the token ids, which would spell it, were removed.",
)
NO_TOKENS: Mapping[str, Any] = {
    "prompt_token_ids": None,
    "completion_token_ids": None,
    "logprobs": None,
    "top_logprobs": None,
    "token_texts": None,
    **dict.fromkeys(EXTRAS),
    "token_source": None,
    "logprobs_mode": None,
    "request_bytes": None,
    "response_bytes": None,
    "trainable": False,
}
"""The fields that a redacted step loses. The bodies hold texts and ids alike, and the alternatives their texts."""


_ARRAYS = (Span, RowSpan, TopTokenRows, TopTokens, SamplingMask)
"""Stored forms of numbers. Plain arrays are told by their ``dtype``."""
_RULED = frozenset(
    {
        "sampling",
        "completion",
        "stop_reason",
        "token_texts",
        "error",
        "attempts",
        "metadata",
        "token_issue",
        "usage",
        "top_logprobs",
        "extra_issues",
        "extra",
        "request_bytes",
        "response_bytes",
    }
)
"""The fields of a step that a user's rules change, beside ``messages`` and ``tools``."""
_IN_PROMPT = frozenset({"messages", "tools", "sampling"})
IN_COMPLETION = frozenset({"completion", "stop_reason", "token_texts"})
"""The fields whose texts the ids of a completion spell."""


def redacted_steps(steps: Iterable[Step], change: Change | None) -> list[Step]:
    """The steps of one trajectory with their texts changed; a step in which nothing changes is the same object.

    A step whose prompt or completion changes loses its token ids, logprobs, extras, lists in ``extra``, and bodies, is
    not trainable, and has the ``token_issue`` ``redacted``. So does a later step whose prompt ids repeat those of a
    completion that changed.

    Args:
        steps: in their order.
        change: called for each text in the fields that rules change; None: keys are cut out of all fields.
    """
    redaction = StepRedaction(change)
    return [redaction.step(step) for step in steps]


def redacted(trajectory: Trajectory, change: Change | None) -> Trajectory:
    """The trajectory with its texts changed as in ``redacted_steps``; itself if nothing changes.

    By rules are changed messages, tools, sampling values, completions, errors, tool runs, task data and metadata.
    Names, models, ids, and the numbers and times of the recorder are not: records are joined by them.
    """
    changed: dict[str, Any] = {}
    steps = redacted_steps(trajectory.steps, change)
    if not all(map(lambda one, other: one is other, steps, trajectory.steps)):
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


_RULED_OF_TRAJECTORY = ("tool_runs", "error", "stop_reason", "task", "environment", "metadata")
_FIELDS_OF_TRAJECTORY = tuple(name for name in TRAJECTORY_FIELDS if name not in ("steps", "exchanges"))


def changed_fields(values: Mapping[str, Any], change: Change | None = None) -> dict[str, Any]:
    """Those of a step's fields whose texts change, as they become.

    Args:
        values: fields by name, as they are stored; not ``messages`` and ``tools``, which steps share.
        change: as for ``redacted_steps``.
    """
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


_WITH_NUMBERS = frozenset({"completion", "metadata", "tool_runs", "task"})
"""Fields in which whole numbers are changed too."""


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
        """``change``: as for ``redacted_steps``."""
        self._change = change
        self._lists: dict[int, _List] = {}
        self._known: dict[int, tuple[Any, Any]] = {}
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
        known = self._lists.get(id(items))
        if known is None:
            known = self._lists[id(items)] = _List(items, place, self._change, self._known)
        if isinstance(values, TableSpan):
            known.change_to(len(items))
            return TableSpan(known.new, values.runs) if known.differs_in(values.runs) else values
        length = values.length if isinstance(values, ListSpan) else len(items)
        known.change_to(length)
        if not known.differs_in(((0, length),)):
            return values
        return ListSpan(known.new, length) if isinstance(values, ListSpan) else FrozenList(known.new)


class _List:
    """A list that steps share, and its changed copy, as far as steps have needed it."""

    __slots__ = ("_change", "_differing", "_known", "_place", "items", "new")

    def __init__(self, items: Any, place: str, change: Change | None, known: dict[int, tuple[Any, Any]]) -> None:
        """``known``: the objects that other lists hold too, by ``id``, each with what became of it."""
        self.items = items  # Referenced: no other list can get its id.
        self.new: list[Any] = []
        self._differing: list[int] = []
        """Positions of the items that change, in order."""
        self._place = place
        self._change = change
        self._known = known

    def change_to(self, length: int) -> None:
        for at in range(len(self.new), length):
            item = self.items[at]
            known = self._known.get(id(item))
            changed = self._changed(item, at) if known is None else known[1]
            if changed is not item:
                self._differing.append(at)
            self.new.append(changed)

    def _changed(self, item: Any, at: int) -> Any:
        if self._change is None and not _hold_key((item,)):
            changed = item
        else:
            numbers = self._place == "messages" and not _is_ids(item)
            by = credentials.change if self._change is None else self._change
            changed = change_value(item, f"{self._place}[{at}]", by, numbers=numbers)
        if isinstance(item, dict):
            # With the object: while it is referenced, no other has its id.
            self._known[id(item)] = item, changed
        return changed

    def differs_in(self, runs: Iterable[tuple[int, int]]) -> bool:
        found = self._differing
        return bool(found) and any(
            (at := bisect_left(found, first)) < len(found) and found[at] < end for first, end in runs
        )


_ID_FIELDS = ("input_ids", "token_ids")


def _sent_ids(step: Step) -> list[Any]:
    """The ids of a prompt that was sent as ids, where the engine's own do not stand for them."""
    lists = [step.sampling[name] for name in _ID_FIELDS if name in step.sampling] if step.sampling else []
    if step.messages and _is_ids(step.messages[0]):
        lists += step.messages if isinstance(step.messages[0], list) else [step.messages]
    return [ids for ids in map(_as_ids, lists) if ids is not None]


def _as_ids(values: Any) -> Any:
    try:
        return as_int32(values)
    except (ValueError, TypeError, OverflowError):
        return None


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
    if prompt is None or not gone:
        return False
    data = prompt.tobytes()
    return any(_aligned(data, ids) for ids in reversed(gone))


def _aligned(data: bytes, ids: bytes) -> bool:
    at = data.find(ids)
    while at % 4 and at != -1:
        at = data.find(ids, at + 1)
    return at != -1
