"""Anthropic's content blocks: merging deltas of a stream, the completion that they make, messages as chat messages."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rollout_trace.data.model import Completion, ToolCall
from rollout_trace.wire.chat_messages import NO_OBJECT, content_of, drop_if, message_of
from rollout_trace.wire.lenient import compact, loads
from rollout_trace.wire.reading import text_of

if TYPE_CHECKING:
    from rollout_trace.report import ExportReport

TOKEN_FIELDS = frozenset({"token_ids", "prompt_token_ids", "logprobs"})
"""Fields that become the step's arrays, and are not kept a second time in ``extra``."""

_TEXT_FIELD_OF_DELTA = {"text_delta": "text", "thinking_delta": "thinking"}
_BLOCK_TYPE_OF_DELTA = {
    "text_delta": "text",
    "citations_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "thinking",
    "input_json_delta": "tool_use",
}
_PLAIN = {"thinking": {"type", "thinking"}, "text": {"type", "text"}}
_ORDER = ("thinking", "text", "tool_use")


class Block:
    """One content block: whole from an unstreamed answer, or a start and its deltas."""

    def __init__(self, start: Any, raw_input: str | None = None) -> None:
        """``raw_input``: the JSON source of the field ``input``, as the server spelled it."""
        self._fields = _without_empty(start) if isinstance(start, dict) else start
        self._raw_input = raw_input
        self._texts: dict[str, list[str]] = {}
        self._json: list[str] = []

    @property
    def type(self) -> str | None:
        """The block's ``type``; None where it has none."""
        kind = self._fields.get("type") if isinstance(self._fields, dict) else None
        return kind if isinstance(kind, str) else None

    def add(self, delta: dict[str, Any]) -> None:
        """Merges the next delta. One of an unknown kind is kept as it came, under ``deltas``."""
        kind, fields = delta.get("type"), self._fields
        if not isinstance(fields, dict):
            return
        text = _TEXT_FIELD_OF_DELTA.get(kind) if isinstance(kind, str) else None
        if text is not None and isinstance(delta.get(text), str):
            self._texts.setdefault(text, []).append(delta[text])
        elif kind == "input_json_delta" and isinstance(delta.get("partial_json"), str):
            self._json.append(delta["partial_json"])
        elif kind == "signature_delta" and isinstance(delta.get("signature"), str):
            fields["signature"] = delta["signature"]
        elif kind == "citations_delta" and "citation" in delta:
            _append(fields, "citations", delta["citation"])
        elif kind == "compaction_delta":
            fields.update((name, value) for name, value in _without_empty(delta).items() if name != "type")
        else:
            _append(fields, "deltas", {name: value for name, value in delta.items() if name not in TOKEN_FIELDS})

    def value(self) -> Any:
        """The block as an unstreamed answer has it, nulls left out. Input that is no JSON (cut) is a text."""
        if not isinstance(self._fields, dict):
            return self._fields
        fields = dict(self._fields)
        for name, parts in self._texts.items():
            begun = fields.get(name)
            fields[name] = (begun if isinstance(begun, str) else "") + "".join(parts)
        if any(self._json):
            fields["input"] = _loads_or_text("".join(self._json))
        return _without_empty(fields)

    def arguments(self) -> str | None:
        """The JSON of the input as spelled by the model (streamed) or the server (unstreamed); None without input."""
        joined = "".join(self._json)
        if joined or not isinstance(self._fields, dict):
            return joined or None
        value = self._fields.get("input")
        if value is None or isinstance(value, str):
            return value
        return compact(value) if self._raw_input is None else self._raw_input


def implied_start(delta: dict[str, Any]) -> dict[str, Any]:
    """The start of a block that began with a delta, because its start event never came."""
    kind = delta.get("type")
    return {"type": _BLOCK_TYPE_OF_DELTA[kind]} if isinstance(kind, str) and kind in _BLOCK_TYPE_OF_DELTA else {}


def completion_of(role: Any, blocks: list[Block], extra: dict[str, Any]) -> Completion:
    """The completion that blocks make.

    ``content`` is the text of all ``text`` blocks, ``reasoning`` that of all ``thinking`` blocks, and ``tool_calls``
    are the ``tool_use`` blocks. Where these fields lose something (signatures, citations, server tools, several texts,
    another order, unknown blocks), ``extra["content"]`` has all blocks, whole and in order.
    """
    values = [block.value() for block in blocks]
    texts = [value["text"] for value in values if _is_text(value, "text")]
    thoughts = [value["thinking"] for value in values if _is_text(value, "thinking")]
    calls = tuple(
        _tool_call(value, block.arguments())
        for block, value in zip(blocks, values, strict=True)
        if block.type == "tool_use"
    )
    if not _is_lossless(values):
        extra = {**extra, "content": values}
    content = "".join(texts) if texts else None
    return Completion(
        role=role if isinstance(role, str) else "assistant",
        content=content or (None if len(values) != len(texts) else content),
        reasoning="".join(thoughts) or None,
        tool_calls=calls,
        extra=extra or None,
    )


def _is_text(value: Any, kind: str) -> bool:
    return isinstance(value, dict) and value.get("type") == kind and isinstance(value.get(kind), str)


def _is_lossless(values: list[Any]) -> bool:
    """True where the blocks are at most one plain thought, then one plain text, then tool calls: nothing is lost."""
    kinds = []
    for value in values:
        if not isinstance(value, dict) or value.get("type") not in _ORDER:
            return False
        kind = value["type"]
        if kind != "tool_use" and not (_is_text(value, kind) and value.keys() == _PLAIN[kind]):
            return False
        if kind == "tool_use" or value[kind]:
            kinds.append(kind)
    ranks = [_ORDER.index(kind) for kind in kinds]
    return ranks == sorted(ranks) and kinds.count("thinking") <= 1 and kinds.count("text") <= 1


def _tool_call(value: dict[str, Any], arguments: str | None) -> ToolCall:
    rest = {key: item for key, item in value.items() if key not in ("type", "id", "name", "input")}
    call_id, name = text_of(value.get("id")), text_of(value.get("name"))
    return ToolCall(id=call_id, name=name, arguments=arguments, extra=rest or None)


def _without_empty(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields without nulls, and without the empty signature and citations that start a block in a stream."""
    return {
        name: value
        for name, value in fields.items()
        if value is not None and name not in TOKEN_FIELDS and not (name in ("citations", "signature") and not value)
    }


def _append(fields: Any, name: str, item: Any) -> None:
    items = fields.setdefault(name, [])
    # A new list: the one there is part of the decoded answer, which may be shared.
    fields[name] = [*(items if isinstance(items, list) else [items]), item]


def _loads_or_text(text: str) -> Any:
    try:
        return loads(text.encode("utf-8", "surrogatepass"))
    except ValueError:
        return text


def to_chat(sent: tuple[Any, ...], report: ExportReport | None) -> Iterator[dict[str, Any]]:
    """One of Anthropic's messages as chat messages: several where it has tool results."""
    (message,) = sent
    if not isinstance(message, dict):
        drop_if(report, True, NO_OBJECT)
        return
    role, content = message.get("role"), message.get("content")
    if not isinstance(content, list):
        yield {"role": role, "content": content}
    elif role == "assistant":
        yield message_of(completion_of(role, [Block(value) for value in content], {}), report)
    else:
        # Chat has a message per tool result; texts before and between them keep their places.
        for is_result, values in groupby(content, _is_result):
            if is_result:
                yield from (_tool_message(value, report) for value in values)
            else:
                yield {"role": role, "content": content_of(list(values), report)}


def _is_result(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "tool_result"


def _tool_message(block: dict[str, Any], report: ExportReport | None) -> dict[str, Any]:
    content = content_of(block.get("content"), report)
    message = {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": "" if content is None else content}
    return {**message, "is_error": True} if block.get("is_error") else message
