"""Messages of model calls in the attributes of spans, as messages of chat.

Known are OpenTelemetry's conventions for GenAI in four generations, and OpenInference's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from rollout_trace.importing.chat import arguments_text, tool_message
from rollout_trace.importing.imported import ImportReport
from rollout_trace.importing.span_values import Span, as_json
from rollout_trace.wire.span_names import names_of

_EVENT = "gen_ai.client.inference.operation.details"
_SYSTEM, _MESSAGES, _COMPLETION, _TOOLS = (names_of(one)[0] for one in ("system", "messages", "completion", "tools"))
_ROLES = ("system", "user", "assistant", "tool")
_MOST = 100_000
"""Items of an indexed list, at most."""


def indexed(attributes: dict[str, Any], prefix: str) -> list[dict[str, Any]]:
    """The fields of each item of a list that is spelled ``PREFIX.0.name``, in the order of the numbers."""
    found: dict[int, dict[str, Any]] = {}
    pattern = re.compile(rf"{re.escape(prefix)}\.(\d{{1,9}})\.(.+)", re.DOTALL)
    for name, value in attributes.items():
        match = pattern.fullmatch(name) if name.startswith(prefix) else None
        if match is not None and len(found) < _MOST:
            found.setdefault(int(match[1]), {})[match[2]] = value
    return [found[at] for at in sorted(found)]


class Conversation:
    """The messages of one model call: those it was sent, and what it answered, one for each choice."""

    def __init__(self, span: Span, report: ImportReport) -> None:
        self._span, self._report = span, report
        self.sent: list[dict[str, Any]] = []
        self.answers: list[dict[str, Any]] = []
        self.finish_reasons: list[Any] = []
        self.tools: list[Any] | None = None
        for attributes in (span.attributes, *(facts for name, facts in span.events if name == _EVENT)):
            if not self.sent and not self.answers:
                self._read_structured(attributes)
        if not self.sent and not self.answers:
            self._read_indexed(span.attributes)
        if not self.sent and not self.answers:
            for prefix, into in (("llm.input_messages", self.sent), ("llm.output_messages", self.answers)):
                into += [_from_openinference(item) for item in indexed(span.attributes, prefix)]
        if not self.sent and not self.answers:
            self._read_events()
        reasons = as_json(span.first("finish_reasons"))
        if isinstance(reasons, list):
            self.finish_reasons = reasons
        self.tools = self.tools or _tools(span.attributes)

    def _read_structured(self, attributes: dict[str, Any]) -> None:
        system = as_json(attributes.get(_SYSTEM))
        if isinstance(system, str) and system:
            self.sent.append({"role": "system", "content": system})
        elif isinstance(system, list) and system:
            self.sent += self._from_parts("system", system)
        for message in _objects(as_json(attributes.get(_MESSAGES))):
            self.sent += self._message(message)
        for message in _objects(as_json(attributes.get(_COMPLETION))):
            made = self._message(message) or [{"role": "assistant", "content": None}]
            self.answers.append({**made[0], "role": "assistant"})
            self.finish_reasons.append(message.get("finish_reason"))

    def _message(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        role, parts = message.get("role"), message.get("parts")
        if isinstance(parts, list):
            return self._from_parts(role if isinstance(role, str) else "user", parts)
        return [_plain(message, role)]

    def _from_parts(self, role: str, parts: list[Any]) -> list[dict[str, Any]]:
        content: list[Any] = []
        calls: list[dict[str, Any]] = []
        thoughts: list[str] = []
        results: list[dict[str, Any]] = []
        for part in _objects(parts):
            kind = part.get("type")
            if kind == "text":
                content.append({"type": "text", "text": _text(part.get("content", part.get("text")))})
            elif kind == "reasoning":
                thoughts.append(_text(part.get("content")))
            elif kind == "tool_call":
                calls.append(_call(part.get("id"), part.get("name"), part.get("arguments")))
            elif kind == "tool_call_response":
                response = part.get("response", part.get("result"))
                results.append(tool_message(_name(part.get("id")), _content(response)))
            elif (image := _image(part)) is not None:
                content.append(image)
            else:
                self._report.drop(f"parts of messages: {str(kind)[:40]}")
        found: dict[str, Any] = {"role": role, "content": _joined(content)}
        if thoughts:
            found["reasoning_content"] = "".join(thoughts)
        if calls:
            found["tool_calls"] = calls
        return results if results and not (content or calls or thoughts) else [*results, found]

    def _read_indexed(self, attributes: dict[str, Any]) -> None:
        """``gen_ai.prompt.N``, ``gen_ai.completion.N``: OpenLLMetry's, and Agent-lightning's."""
        self.sent = [_from_indexed(item) for item in indexed(attributes, "gen_ai.prompt")]
        for item in indexed(attributes, "gen_ai.completion"):
            self.answers.append({**_from_indexed(item), "role": "assistant"})
            self.finish_reasons.append(item.get("finish_reason"))

    def _read_events(self) -> None:
        """Events of conventions up to 1.36: one for each message, and one for each choice."""
        for name, facts in self._span.events:
            body = facts.get("gen_ai.event.content", facts.get("event.body"))
            fields = as_json(body) if body is not None else facts
            if not isinstance(fields, dict):
                continue
            if name == "gen_ai.choice":
                inner = as_json(fields.get("message", fields))
                self.answers.append(_plain(inner if isinstance(inner, dict) else {"content": inner}, "assistant"))
                self.finish_reasons.append(fields.get("finish_reason"))
            else:
                role = name.removeprefix("gen_ai.").removesuffix(".message")
                if role in _ROLES and name == f"gen_ai.{role}.message":
                    self.sent.append(_plain(fields, role))


def _plain(message: dict[str, Any], role: Any) -> dict[str, Any]:
    """A message that has the fields of chat, as a writer spells them."""
    role = role if isinstance(role, str) else "user"
    found: dict[str, Any] = {"role": role, "content": _content(message.get("content"))}
    calls = []
    for call in _objects(as_json(message.get("tool_calls"))):
        inner = call["function"] if isinstance(call.get("function"), dict) else call
        calls.append(_call(call.get("id"), inner.get("name"), inner.get("arguments")))
    if calls:
        found["tool_calls"] = calls
    if role == "tool":
        found["tool_call_id"] = _name(message.get("tool_call_id", message.get("id")))
    if isinstance(message.get("reasoning_content"), str):
        found["reasoning_content"] = message["reasoning_content"]
    return found


def _from_indexed(item: dict[str, Any]) -> dict[str, Any]:
    return _plain({**item, "tool_calls": indexed(item, "tool_calls")}, item.get("role"))


def _from_openinference(item: dict[str, Any]) -> dict[str, Any]:
    fields = {name.removeprefix("message."): value for name, value in item.items()}
    contents = [(part.get("message_content.type"), part) for part in indexed(fields, "contents")]
    texts = [_text(part.get("message_content.text")) for kind, part in contents if kind == "reasoning"]
    if any(texts):
        fields["reasoning_content"] = "".join(texts)
    call = {"tool_call.id": "id", "tool_call.function.name": "name", "tool_call.function.arguments": "arguments"}
    calls = indexed(fields, "tool_calls")
    fields["tool_calls"] = [{ours: one.get(name) for name, ours in call.items()} for one in calls]
    found = _plain(fields, fields.get("role"))
    if contents:
        found["content"] = _joined([_openinference_part(part) for kind, part in contents if kind not in _NO_PARTS])
    return found


_NO_PARTS = frozenset({"reasoning", "tool_use"})
"""Types of OpenInference's contents that stand elsewhere in a message of chat; calls stand among its calls too."""


def _openinference_part(part: dict[str, Any]) -> dict[str, Any]:
    url = part.get("message_content.image.image.url")
    if isinstance(url, str):
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "text", "text": _text(part.get("message_content.text"))}


def _image(part: dict[str, Any]) -> dict[str, Any] | None:
    kind, media = part.get("type"), part.get("mime_type")
    is_image = part.get("modality") == "image" or (isinstance(media, str) and media.startswith("image/"))
    if kind == "uri" and is_image and isinstance(part.get("uri"), str):
        return {"type": "image_url", "image_url": {"url": part["uri"]}}
    if kind == "blob" and is_image and isinstance(part.get("content"), str):
        return {"type": "image_url", "image_url": {"url": f"data:{media or 'image/png'};base64,{part['content']}"}}
    return None


def _tools(attributes: dict[str, Any]) -> list[Any] | None:
    tools = as_json(attributes.get(_TOOLS))
    if isinstance(tools, list):
        return [_tool(one) for one in _objects(tools)] or None
    schemas = [as_json(item.get("tool.json_schema")) for item in indexed(attributes, "llm.tools")]
    if any(isinstance(one, dict) for one in schemas):
        return [_tool(one) for one in _objects(schemas)]
    functions = indexed(attributes, "llm.request.functions")
    return [{"type": "function", "function": _function(one)} for one in functions] or None


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    if isinstance(tool.get("function"), dict) or "name" not in tool:
        return tool
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def _function(fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "parameters": as_json(fields["parameters"])} if "parameters" in fields else fields


def _call(call_id: Any, name: Any, arguments: Any) -> dict[str, Any]:
    function = {"name": _name(name), "arguments": arguments_text(arguments) or "{}"}
    return {"id": _name(call_id), "type": "function", "function": function}


def _objects(values: Any) -> Iterator[dict[str, Any]]:
    yield from (one for one in (values if isinstance(values, list) else ()) if isinstance(one, dict))


def _joined(content: list[Any]) -> Any:
    if len(content) == 1 and content[0].get("type") == "text":
        return content[0]["text"]
    return content or None


def _content(value: Any) -> Any:
    if value is None or isinstance(value, (str, list)):
        return value
    return _text(value)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return "" if value is None else json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return ""


def _name(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
