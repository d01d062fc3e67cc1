"""Items of Responses: of the events of a stream, as a completion, and as chat messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from rollout_trace.data.model import Completion, ToolCall
from rollout_trace.wire.chat_messages import NO_OBJECT, OUTPUT_ITEMS, content_of, drop_if, message_of
from rollout_trace.wire.reading import text_of

if TYPE_CHECKING:
    from rollout_trace.report import ExportReport

_CALLS = {"function_call": ("function", "arguments"), "custom_tool_call": ("custom", "input")}
_TOOL_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})
_MESSAGE_FIELDS = frozenset({"id", "type", "role", "status", "content"})
_TEXT_FIELDS = frozenset({"type", "text", "logprobs"})
_REFUSAL_FIELDS = frozenset({"type", "refusal"})
_NO_FIELDS: frozenset[str] = frozenset()
_REASONING_FIELDS = frozenset({"id", "type", "status", "content"})


def completion_of(items: list[Any]) -> Completion:
    """The completion that output items make.

    ``content`` is the text of all messages, ``reasoning`` that of the reasoning or else its summary, ``tool_calls`` are
    the function and custom calls. Where these fields lose something (order, built-in tools, annotations, encrypted
    reasoning, items of unknown types), ``extra["output"]`` has the items as they came, without their logprobs.
    """
    known = [item for item in items if isinstance(item, dict)]
    calls = tuple(_call(item) for item in known if _kind(item) in _CALLS)
    texts = [_text(part, "text") for part in content_parts(known) if part.get("type") == "output_text"]
    refusals = [_text(part, "refusal") for part in content_parts(known) if part.get("type") == "refusal"]
    reasoning = _reasoning(known) or None
    content: str | None = "".join(texts) if texts else None
    if not content and (calls or reasoning or refusals):
        content = None
    return Completion(
        role=next((item["role"] for item in known if isinstance(item.get("role"), str)), "assistant"),
        content=content,
        reasoning=reasoning,
        tool_calls=calls,
        refusal="".join(refusals) if refusals else None,
        extra=None if _is_plain(items) else {"output": [_without_logprobs(item) for item in items]},
    )


def content_parts(items: list[Any]) -> Iterator[dict[str, Any]]:
    """The content parts of all messages, in order."""
    for item in items:
        if isinstance(item, dict) and item.get("type") == "message":
            yield from _objects(item.get("content"))


def num_sampled(items: list[Any]) -> int:
    """Number of items that the model sampled: all but the outputs of tools."""
    kinds = [_kind(item) for item in items if isinstance(item, dict)]
    return sum(not kind.endswith("_output") for kind in kinds)


def _call(item: dict[str, Any]) -> ToolCall:
    kind, field = _CALLS[item["type"]]
    taken = {"type", "call_id", "name", field, "id"}
    extra = {name: value for name, value in item.items() if value is not None and name not in taken}
    if item.get("id") is not None:
        # The item's own id; a tool's output refers to `call_id` instead.
        extra["item_id"] = item["id"]
    call_id, name, arguments = (item.get(key) for key in ("call_id", "name", field))
    return ToolCall(
        id=call_id if isinstance(call_id, str) else None,
        name=name if isinstance(name, str) else None,
        arguments=arguments if isinstance(arguments, str) else None,
        type=kind,
        extra=extra or None,
    )


def _reasoning(items: list[dict[str, Any]]) -> str:
    """The text of the reasoning; its summary where the provider sends no more."""
    found = [item for item in items if item.get("type") == "reasoning"]
    for field, between in (("content", ""), ("summary", "\n\n")):
        texts = [between.join(_text(part, "text") for part in _objects(item.get(field))) for item in found]
        if any(texts):
            return "\n\n".join(filter(None, texts))
    return ""


def _is_plain(items: list[Any]) -> bool:
    """True where a completion's own fields hold everything: at most one reasoning, then one message, then calls."""
    kinds = [_kind(item) if isinstance(item, dict) else "" for item in items]
    order = [("reasoning", "message", *_CALLS).index(kind) if kind in _PLAIN else -1 for kind in kinds]
    if order != sorted(order) or -1 in order or kinds.count("reasoning") > 1 or kinds.count("message") > 1:
        return False
    return all(_PLAIN[kind](item) for kind, item in zip(kinds, items, strict=True))


def _is_plain_message(item: dict[str, Any]) -> bool:
    content = item.get("content")
    if _has_other_fields(item, _MESSAGE_FIELDS) or not (content is None or isinstance(content, list)):
        return False
    parts = content or []
    kinds = {"output_text": _TEXT_FIELDS, "refusal": _REFUSAL_FIELDS}
    return all(isinstance(p, dict) and not _has_other_fields(p, kinds.get(_kind(p), _NO_FIELDS)) for p in parts)


def _is_plain_reasoning(item: dict[str, Any]) -> bool:
    parts = item.get("content")
    if _has_other_fields(item, _REASONING_FIELDS) or not isinstance(parts, list) or not parts:
        return False
    return all(isinstance(part, dict) and not _has_other_fields(part, {"type", "text"}) for part in parts)


def _is_plain_call(item: dict[str, Any]) -> bool:
    texts = ("call_id", "name", _CALLS[item["type"]][1])
    return all(item.get(name) is None or isinstance(item[name], str) for name in texts)


_PLAIN = {
    "message": _is_plain_message,
    "reasoning": _is_plain_reasoning,
    "function_call": _is_plain_call,
    "custom_tool_call": _is_plain_call,
}


def _has_other_fields(item: dict[str, Any], fields: frozenset[str] | set[str]) -> bool:
    """True where an object has other fields than these, nulls and empty lists aside."""
    return any(name not in fields and value is not None and value != [] for name, value in item.items())


def _without_logprobs(item: Any) -> Any:
    # A step has its logprobs as an array, and they are large.
    if not isinstance(item, dict) or not isinstance(item.get("content"), list):
        return item
    content = [
        {name: value for name, value in part.items() if name != "logprobs"} if isinstance(part, dict) else part
        for part in item["content"]
    ]
    return {**item, "content": content}


def _kind(item: dict[str, Any]) -> str:
    return _text(item, "type")


def _objects(values: Any) -> list[dict[str, Any]]:
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def _text(part: dict[str, Any], name: str) -> str:
    return part[name] if isinstance(part.get(name), str) else ""


def groups(sent: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """The items of a request in groups that are one chat message each: consecutive output items are one answer."""
    for is_output, group in groupby(sent, _is_output):
        items = tuple(group)
        yield from [items] if is_output else zip(items)


def to_chat(sent: tuple[Any, ...], report: ExportReport | None) -> Iterator[dict[str, Any]]:
    """The output items of one answer, or one other item of a Responses request, as chat messages."""
    item = sent[0]
    if _is_output(item):
        yield message_of(completion_of(list(sent)), report)
    elif isinstance(item, str):
        yield {"role": "user", "content": item}
    elif not isinstance(item, dict):
        drop_if(report, True, NO_OBJECT)
    elif str(item.get("type")) in _TOOL_OUTPUTS:
        output = content_of(item.get("output"), report)
        yield {"role": "tool", "tool_call_id": item.get("call_id"), "content": "" if output is None else output}
    elif item.get("role") is not None:
        yield {"role": item["role"], "content": content_of(item.get("content"), report)}
    else:
        drop_if(report, True, f"items without a place in a chat message: {item.get('type')}")


def _is_output(item: Any) -> bool:
    """True for an item of an earlier answer. An assistant message written by the caller lacks parts of these types."""
    if not isinstance(item, dict):
        return False
    kind, content = item.get("type"), item.get("content")
    if kind == "message":
        parts = content if isinstance(content, list) and item.get("role") == "assistant" else []
        return any(isinstance(part, dict) and part.get("type") in ("output_text", "refusal") for part in parts)
    return isinstance(kind, str) and (kind in OUTPUT_ITEMS or kind.endswith("_call"))


class ItemEvent(Struct):
    """The fields of events that build items. Most are untyped: unknown events may use the names for other values."""

    item: Any = None
    part: Any = None
    output_index: int | None = None
    item_id: str | None = None
    content_index: int | None = None
    summary_index: int | None = None
    delta: Any = None
    text: Any = None
    refusal: Any = None
    arguments: Any = None
    input: Any = None
    code: Any = None
    annotation: Any = None
    logprobs: Any = None


# Events named `response.NAME.delta` and `.done`, which build a text of the item itself, or of one of its parts.
_TEXTS_OF_ITEMS = {
    "function_call_arguments": ("function_call", "arguments"),
    "mcp_call_arguments": ("mcp_call", "arguments"),
    "custom_tool_call_input": ("custom_tool_call", "input"),
    "code_interpreter_call_code": ("code_interpreter_call", "code"),
}
_TEXTS_OF_PARTS = {
    "output_text": ("message", "content", "output_text", "text"),
    "refusal": ("message", "content", "refusal", "refusal"),
    "reasoning_text": ("reasoning", "content", "reasoning_text", "text"),
    "reasoning_summary_text": ("reasoning", "summary", "summary_text", "text"),
}
_LIST_OF_PART = {"content_part": "content", "reasoning_summary_part": "summary"}
_OF_REASONING = frozenset({"reasoning_text", "summary_text"})
_LISTS = ("content", "summary")
_TEXTS = ("text", "refusal", "arguments", "input", "code")


class Items:
    """The items of one stream, in the order of their ``output_index``, or of arrival where some have none."""

    def __init__(self) -> None:
        self.gaps = False
        """True where some text came without logprobs, or could not be read."""
        self.pieces: list[Piece] = []
        """The text deltas of messages in order, with their logprob entries."""
        self._items: dict[int | str, dict[str, Any]] = {}
        self._place_of: dict[str, int | str] = {}
        self._last: int | str | None = None
        self._parts: dict[tuple[int, str, int], dict[str, Any]] = {}
        # Deltas by the identity of their item or part and by field: joining at every delta would be quadratic.
        self._texts: dict[tuple[int, str], list[str]] = {}
        self._has_text_without_logprobs = False

    def add(self, name: str, step: str, event: ItemEvent) -> None:
        """Reads the event ``response.NAME.STEP``. Ignores unknown events and those that lack a field they need."""
        if name == "output_item" and isinstance(event.item, dict):
            self._set(self._item(event, event.item.get("id"), event.item.get("type")), event.item)
        elif name in _LIST_OF_PART and isinstance(event.part, dict):
            kind = str(event.part.get("type"))
            owner = "reasoning" if kind in _OF_REASONING else "message"
            self._set(self._part(event, owner, _LIST_OF_PART[name], kind), event.part)
        elif name in _TEXTS_OF_ITEMS:
            kind, field = _TEXTS_OF_ITEMS[name]
            self._extend(self._item(event, event.item_id, kind), field, step, event)
        elif name in _TEXTS_OF_PARTS:
            owner, list_name, kind, field = _TEXTS_OF_PARTS[name]
            part = self._part(event, owner, list_name, kind)
            self._extend(part, field, step, event)
            if name == "output_text" and step == "delta":
                self._add_logprobs(part, event)
        elif name == "output_text.annotation" and event.annotation is not None:
            part = self._part(event, "message", "content", "output_text")
            _append(part, "annotations", [event.annotation])

    def all(self) -> list[Any]:
        """The items so far, with the deltas so far joined."""
        for item in self._items.values():
            self._join_deltas(item)
        places = [place for place in self._items if isinstance(place, int)]
        return [self._items[place] for place in (sorted(places) if len(places) == len(self._items) else self._items)]

    def _item(self, event: ItemEvent, item_id: Any, kind: Any) -> dict[str, Any]:
        """The item of an event: by its index, by its id (servers send one without the other), else the last one."""
        place: int | str | None = event.output_index
        item_id = item_id if isinstance(item_id, str) else None
        if place not in self._items and item_id is not None:
            place = self._place_of.get(item_id, item_id if place is None else place)
        if place is None:
            place = len(self._items) if self._last is None else self._last
        if item_id is not None:
            self._place_of[item_id] = place
        self._last = place
        return self._items.setdefault(place, {"type": kind})

    def _part(self, event: ItemEvent, owner: str, list_name: str, kind: str) -> dict[str, Any]:
        item = self._item(event, event.item_id, owner)
        parts = item.get(list_name)
        if not isinstance(parts, list):
            parts = item[list_name] = []
        index = event.summary_index if list_name == "summary" else event.content_index
        key = (id(item), list_name, 0 if index is None else index)
        part = self._parts.get(key)
        if part is None:
            # By identity: two parts can be equal, and one that has another index already must not get this one too.
            taken = [id(known) for known in self._parts.values()]
            at = parts[key[2]] if 0 <= key[2] < len(parts) else None
            if isinstance(at, dict) and id(at) not in taken:
                part = at
            else:
                # A part without a beginning goes to the end: parts missing before it are not invented.
                part = {"type": kind}
                parts.append(part)
            self._parts[key] = part
        return part

    def _set(self, holder: dict[str, Any], value: dict[str, Any]) -> None:
        """Overwrites the fields of an item or a part with an event's; empty ones overwrite nothing."""
        self._join_deltas(holder)
        for name, new in value.items():
            if new or not holder.get(name):
                holder[name] = list(new) if isinstance(new, list) else new
                # The list is another one now: parts that were looked up in the old one would collect deltas in vain.
                if name in _LISTS:
                    self._parts = {key: part for key, part in self._parts.items() if key[:2] != (id(holder), name)}

    def _extend(self, holder: dict[str, Any], field: str, step: str, event: ItemEvent) -> None:
        whole = getattr(event, field)
        if step == "delta" and isinstance(event.delta, str):
            self._texts.setdefault((id(holder), field), []).append(event.delta)
        elif step == "done" and isinstance(whole, str):
            self._texts.pop((id(holder), field), None)
            holder[field] = whole
        elif step == "delta":
            self.gaps = True

    def _add_logprobs(self, part: dict[str, Any], event: ItemEvent) -> None:
        entries = event.logprobs if isinstance(event.logprobs, list) else []
        self.pieces.append(Piece(event.delta if isinstance(event.delta, str) else "", entries))
        if event.logprobs and isinstance(event.logprobs, list):
            self.gaps = self.gaps or self._has_text_without_logprobs
            _append(part, "logprobs", event.logprobs)
        elif event.delta:
            self._has_text_without_logprobs = True
            self.gaps = self.gaps or bool(part.get("logprobs"))

    def _join_deltas(self, holder: dict[str, Any]) -> None:
        """Joins the waiting deltas of an item and its parts, or of a part, into their fields."""
        lists = [holder.get(name) for name in _LISTS]
        parts = [part for parts in lists if isinstance(parts, list) for part in parts if isinstance(part, dict)]
        for one in (holder, *parts):
            for field in _TEXTS:
                deltas = self._texts.pop((id(one), field), None)
                if deltas is not None:
                    before = one.get(field)
                    one[field] = "".join([before, *deltas] if isinstance(before, str) else deltas)


def _append(part: dict[str, Any], name: str, values: list[Any]) -> None:
    if isinstance(part.get(name), list):
        part[name].extend(values)
    else:
        part[name] = list(values)


GAPS_UNPLACED = (
    "{} of {} logprobs did not come with this stream, and nothing says of which tokens: of half characters, the stop "
    "token, others without text. Without a stream, all come."
)
GAPS_PLACED = "{} of {} logprobs did not come with this stream: those of half characters and of the stop token are NaN."


class Piece(NamedTuple):
    """One event that adds text."""

    text: str
    entries: Sequence[Any]
    """The logprob entries that came with it."""


def missing_positions(pieces: Sequence[Piece], missing: int, *, stopped: bool) -> list[int] | None:
    """The positions of the completion ids whose logprobs are missing, ascending; None where they are not certain.

    ``stopped``: a stop token ended the completion, which adds no text.
    """
    places: list[int] = []
    position = 0
    for piece in pieces:
        # A token of another type is no text: what it stands for differs then.
        own = "".join(text_of(entry.get("token")) or "" for entry in piece.entries if isinstance(entry, dict))
        if piece.text != own:
            before = piece.text.removesuffix(own)
            # Of several tokens in one event, any may lack its entry; and only characters beyond ASCII have halves.
            if len(piece.entries) != 1 or before == piece.text or before.isascii():
                return None
            places.append(position)
            position += 1
        position += len(piece.entries)
    if stopped:
        places.append(position)
    return places if len(places) == missing else None


def filled(values: Sequence[Any], places: Sequence[int], filler: Any) -> list[Any]:
    """A copy of the values with ``filler`` inserted; ``places`` are ascending positions in the result."""
    result = list(values)
    for place in places:
        result.insert(place, filler)
    return result
