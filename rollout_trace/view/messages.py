"""Messages of every protocol as what is shown of them. Nothing is left out: a part without a form is shown as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from rollout_trace.report import ExportReport
from rollout_trace.view.model import Message, Part
from rollout_trace.view.values import json_text, text_of
from rollout_trace.wire.chat_messages import answer, convert, grouped

if TYPE_CHECKING:
    from rollout_trace.data.model import Step

_REASONING = ("reasoning_content", "reasoning", "thinking")
_MEDIA = {"image_url": "image", "input_audio": "audio", "file": "file"}
_SHOWN = frozenset({"role", "content", "name", "tool_calls", "tool_call_id", "refusal", "function_call", *_REASONING})


def shown_messages(step: Step, sent: Iterable[Any]) -> list[Message]:
    """Messages of a step's request, some or all of ``step.messages``, in their order."""
    return [message for group in grouped(step.protocol, sent) if group for message in _of_group(step.protocol, group)]


def shown_answer(step: Step) -> Message | None:
    """The completion of a step as a message; None where it has none."""
    report = ExportReport()
    message = answer(step, report=report)
    if message is None:
        return None
    shown = _of_chat(message)
    extra = None if step.completion is None else step.completion.extra
    if extra and any(what not in report.metadata for what in report.dropped):
        shown.parts.append(Part(kind="json", text=json_text(dict(extra))))
    return shown


def _of_group(protocol: str | None, group: tuple[Any, ...]) -> list[Message]:
    report = ExportReport()
    shown = [_of_chat(message) for message in convert(protocol, group, report)]
    if any(what not in report.metadata for what in report.dropped):
        # What has no place in a chat message: the whole of it, as it was sent.
        role = shown[-1].role if shown else _role(group)
        parts = [Part(kind="json", text=json_text(message)) for message in group]
        return [*shown, Message(role=role, parts=parts)]
    return shown


def _role(group: tuple[Any, ...]) -> str:
    role = group[0].get("role") if isinstance(group[0], dict) else None
    return role if isinstance(role, str) else "user"


def _of_chat(message: Any) -> Message:
    if not isinstance(message, dict):
        return Message(role="user", parts=[Part(kind="json", text=json_text(message))])
    role, name, call_id = message.get("role"), message.get("name"), message.get("tool_call_id")
    return Message(
        role=role if isinstance(role, str) else "user",
        parts=list(_parts(message)),
        name=name if isinstance(name, str) else None,
        tool_call_id=call_id if isinstance(call_id, str) else None,
    )


def _parts(message: dict[str, Any]) -> Iterator[Part]:
    reasoning = next((message[name] for name in _REASONING if message.get(name)), None)
    if reasoning is not None:
        yield Part(kind="reasoning", text=text_of(reasoning))
    content = message.get("content")
    for part in content if isinstance(content, list) else [content]:
        yield from _content(part)
    if message.get("refusal"):
        yield Part(kind="refusal", text=text_of(message["refusal"]))
    calls = message.get("tool_calls")
    older = message.get("function_call")
    for call in [*(calls if isinstance(calls, list) else []), *([] if older is None else [{"function": older}])]:
        yield _tool_call(call)
    others = {name: value for name, value in message.items() if name not in _SHOWN and value not in (None, [], {}, "")}
    if others:
        yield Part(kind="json", text=json_text(others))


def _content(part: Any) -> Iterator[Part]:
    if isinstance(part, str):
        if part:
            yield Part(kind="text", text=part)
    elif isinstance(part, dict):
        kind = part.get("type")
        if kind == "text" and isinstance(part.get("text"), str):
            yield Part(kind="text", text=part["text"])
        elif kind == "refusal":
            yield Part(kind="refusal", text=text_of(part.get("refusal")))
        elif isinstance(kind, str) and kind in _MEDIA:
            yield _media(kind, part)
        else:
            yield Part(kind="json", text=json_text(part))
    elif part is not None:
        yield Part(kind="json", text=json_text(part))


def _media(kind: str, part: dict[str, Any]) -> Part:
    inner = part.get(kind)
    if isinstance(inner, str):
        inner = {"url": inner}
    if not isinstance(inner, dict):
        return Part(kind="json", text=json_text(part))
    address = next((inner[name] for name in ("url", "data", "file_data", "file_id") if inner.get(name)), "")
    name = inner.get("filename") or inner.get("format")
    shown = Part(kind=_MEDIA[kind], text=text_of(address), name=name if isinstance(name, str) else None)  # type: ignore[arg-type]
    if shown.name is None and shown.text.startswith("data:"):
        shown.name = shown.text[5:].partition(";")[0].partition(",")[0] or None
    return shown


def _tool_call(call: Any) -> Part:
    inner = (call.get("function") or call.get("custom")) if isinstance(call, dict) else None
    if not isinstance(inner, dict):
        return Part(kind="tool_call", text=json_text(call))
    name, identity = inner.get("name"), call.get("id")
    return Part(
        kind="tool_call",
        text=text_of(inner.get("arguments", inner.get("input"))),
        name=name if isinstance(name, str) else None,
        id=identity if isinstance(identity, str) else None,
    )
