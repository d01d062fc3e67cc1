"""Messages of inspect as messages of chat, with the pools and attachments of a sample put in their places."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rollout_trace.data.model import Completion, ToolCall
from rollout_trace.importing.chat import arguments_text, tool_message
from rollout_trace.importing.fields import Fields
from rollout_trace.importing.imported import ImportReport
from rollout_trace.wire.chat_messages import assistant_message

_ATTACHMENT = "attachment://"
_DEPTH = 200


class Messages:
    """Converts the messages of one sample."""

    def __init__(self, sample: Fields, report: ImportReport) -> None:
        self._report = report
        self._attachments = sample.mapping("attachments")
        self._pool = list(sample.object("events_data").objects("messages"))
        self.missing = 0
        """Attachments that are referred to and not there."""

    def input_of(self, event: Fields) -> Iterator[Fields]:
        """The messages that a call was sent: its own, or those of the pool that it refers to."""
        refs = event.items("input_refs")
        if not refs:
            yield from event.objects("input")
            return
        for ref in refs:
            is_range = isinstance(ref, list) and len(ref) == 2 and all(isinstance(one, int) for one in ref)
            if not is_range or not 0 <= ref[0] <= ref[1] <= len(self._pool):
                event.wrong("input_refs", f"ranges of the {len(self._pool)} messages of events_data")
                return
            yield from self._pool[ref[0] : ref[1]]

    def resolved(self, value: Any, depth: int = 0) -> Any:
        """A value with the attachments in the places of their references."""
        if isinstance(value, str) and value.startswith(_ATTACHMENT):
            found = self._attachments.get(value.removeprefix(_ATTACHMENT))
            self.missing += not isinstance(found, str)
            return found if isinstance(found, str) else value
        if depth > _DEPTH:
            return value
        if isinstance(value, list):
            return [self.resolved(one, depth + 1) for one in value]
        if isinstance(value, dict):
            return {name: self.resolved(one, depth + 1) for name, one in value.items()}
        return value

    def chat(self, message: Fields) -> dict[str, Any]:
        """A message in the shape of chat."""
        role = message.text("role") or "user"
        if role == "assistant":
            return assistant_message(self.completion(message))
        content = self._content(message)[0]
        if role == "tool":
            error = message.object("error")
            content = content or error.text("message")
            return tool_message(message.name("tool_call_id"), content, is_error=bool(error))
        return {"role": role, "content": content}

    def completion(self, message: Fields) -> Completion:
        """An answer."""
        content, reasoning, other = self._content(message)
        return Completion(
            content=content if isinstance(content, (str, list)) else None,
            reasoning=reasoning,
            tool_calls=tuple(self._call(call) for call in message.objects("tool_calls")),
            extra={"content": other} if other else None,
        )

    def _call(self, call: Fields) -> ToolCall:
        problem = call.text("parse_error")
        # Arguments were decoded: how the model spelled them is lost, save where they could not be.
        extra = None if problem is None else {"parse_error": problem}
        kind = "custom" if call.get("type") == "custom" else "function"
        arguments = self.resolved(call.get("arguments"))
        return ToolCall(
            id=call.name("id"), name=call.text("function"), arguments=arguments_text(arguments), type=kind, extra=extra
        )

    def _content(self, message: Fields) -> tuple[Any, str | None, list[Any]]:
        """The content, the reasoning, and parts that neither holds."""
        value = message.get("content")
        if value is None or isinstance(value, str):
            return self.resolved(value) or None, None, []
        if not isinstance(value, list):
            message.wrong("content", "a text or a list of parts")
            return None, None, []
        parts: list[Any] = []
        thoughts: list[str] = []
        other: list[Any] = []
        for part in message.objects("content"):
            kind = part.text("type")
            if kind == "text":
                parts.append({"type": "text", "text": self.resolved(part.text("text")) or ""})
            elif kind == "reasoning":
                thoughts.append(self.resolved(part.text("reasoning")) or part.text("summary") or "")
            elif kind == "image":
                parts.append({"type": "image_url", "image_url": {"url": self.resolved(part.text("image")) or ""}})
            elif message.get("role") == "assistant":
                other.append(self.resolved(part.values))
            else:
                self._report.drop(f"parts of messages: {str(kind)[:40]}")
        texts = [part["text"] for part in parts if part["type"] == "text"]
        content: Any = "".join(texts) if len(texts) == len(parts) else parts
        return content or None, "\n\n".join(filter(None, thoughts)) or None, other
