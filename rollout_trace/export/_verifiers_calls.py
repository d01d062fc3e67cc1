"""Model calls, messages and tools in the forms of verifiers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rollout_trace.data.model import CUT_OFF, Usage
from rollout_trace.wire.chat_messages import calls_of
from rollout_trace.wire.protocols import record_of

if TYPE_CHECKING:
    from datetime import datetime

    from rollout_trace.data.model import ErrorInfo, Step
    from rollout_trace.report import ExportReport
    from rollout_trace.wire.chat_messages import Message

_FINISHES = {
    "stop": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    **dict.fromkeys(CUT_OFF, "length"),
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
}
_ROLES = {"developer": "system", "function": "tool"}
_SAMPLING: dict[str, type | tuple[type, ...]] = {
    "temperature": (int, float),
    "top_p": (int, float),
    "reasoning_effort": str,
    "max_tokens": int,
}


_TOOL: dict[str, type] = {"description": str, "parameters": dict, "strict": bool}


def seconds(when: datetime | None) -> float:
    """Seconds since 1970; 0.0, which verifiers reads as unset, where the time is not known."""
    return 0.0 if when is None else when.timestamp()


def error_of(error: ErrorInfo) -> dict[str, Any]:
    """An error in verifiers' form."""
    return {"type": error.type, "message": error.message, "status_code": error.status}


def _endpoint(step: Step) -> str | None:
    """The path of a protocol without its version, as verifiers writes it; None without a decoder or a path."""
    protocol = record_of(step.protocol)
    return None if protocol.decoder is None or not protocol.paths else protocol.paths[0].removeprefix("/v1")


def call_of(step: Step, node: int | None, first: bool) -> dict[str, Any]:
    """A ``ModelCall``. Usage counts all choices of a call together: only the first (``first``) has it."""
    usage = step.usage if first else None
    began = seconds(step.started_at)
    has_counts = usage is not None and usage.input is not None and usage.output is not None
    return {
        "node": node,
        "model": step.model,
        "sampling": _sampling(step),
        "endpoint": _endpoint(step),
        "finish_reason": _FINISHES.get(step.finish_reason or ""),
        "usage": _usage(step) if has_counts else None,
        "time": {"start": began, "end": began + (step.latency or 0.0) if began else 0.0},
        "error": None if step.error is None else error_of(step.error),
    }


def _usage(step: Step) -> dict[str, Any]:
    usage, cost = step.usage or Usage(), step.cost
    return {
        # In verifiers, prompt tokens do not include those read from the cache.
        "prompt_tokens": (usage.input or 0) - (usage.cache_read or 0),
        "completion_tokens": usage.output,
        "cached_input_tokens": usage.cache_read,
        "reasoning_tokens": usage.reasoning,
        "cost": cost.amount if cost is not None and cost.currency == "USD" else None,
    }


def _sampling(step: Step) -> dict[str, Any]:
    """The request's sampling settings, without values of another type than verifiers' own."""
    settings = dict(step.sampling or {})
    if "max_completion_tokens" in settings:
        settings["max_tokens"] = settings.pop("max_completion_tokens")
    return {
        name: value
        for name, value in settings.items()
        if name not in _SAMPLING or value is None or isinstance(value, _SAMPLING[name])
    }


def message_of(message: Message, report: ExportReport) -> dict[str, Any]:
    """A chat message in verifiers' form: contents are texts or parts of text and image, an answer's is one text."""
    role = _ROLES.get(str(message.get("role")), message.get("role"))
    content = _content(message.get("content"), report)
    if role == "assistant":
        calls = [_call(call, report) for call in calls_of(message)]
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        return {
            "role": "assistant",
            "content": _only_text(content, report) or message.get("refusal"),
            "reasoning_content": reasoning if isinstance(reasoning, str) else None,
            "tool_calls": calls or None,
        }
    if role == "tool":
        return {"role": "tool", "tool_call_id": str(message.get("tool_call_id") or ""), "content": content}
    if role not in ("system", "user"):
        report.drop(f"roles that verifiers does not know, written as user: {role}")
        role = "user"
    return {"role": role, "content": content}


def _content(content: Any, report: ExportReport) -> Any:
    if not isinstance(content, list):
        return content if isinstance(content, str) else "" if content is None else json.dumps(content, default=str)
    return [part for item in content if (part := _part(item, report)) is not None]


def _part(item: Any, report: ExportReport) -> dict[str, Any] | None:
    kind = item.get("type") if isinstance(item, dict) else type(item).__name__
    if kind in ("text", "refusal") and isinstance(item.get(kind), str):
        return {"type": "text", "text": item[kind]}
    image = item.get("image_url") if kind == "image_url" else None
    url = image.get("url") if isinstance(image, dict) else image
    if isinstance(url, str):
        return {"type": "image_url", "image_url": {"url": url}}
    report.drop(f"content parts that verifiers has no type for: {kind}")
    return None


def _only_text(content: Any, report: ExportReport) -> str | None:
    if not isinstance(content, list):
        return content or None
    texts = [part["text"] for part in content if part["type"] == "text"]
    report.drop("images in an answer", len(content) - len(texts))
    return "".join(texts) or None


def _call(call: Any, report: ExportReport) -> dict[str, Any]:
    kind = "custom" if isinstance(call, dict) and call.get("type") == "custom" else "function"
    inner = call.get(kind) if isinstance(call, dict) else None
    fields = inner if isinstance(inner, dict) else {}
    arguments = fields.get("input" if kind == "custom" else "arguments")
    return {
        "id": str(call.get("id") or "") if isinstance(call, dict) else "",
        "type": kind,
        "name": str(fields.get("name") or ""),
        "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
    }


def tool_of(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool of chat's shape in verifiers' flat form, without values of another type than verifiers' own."""
    kind = "custom" if tool.get("type") == "custom" else "function"
    inner = tool.get(kind)
    given = inner.items() if isinstance(inner, dict) else ()
    fields = {name: value for name, value in given if isinstance(value, _TOOL.get(name, object)) and value is not None}
    return {**fields, "type": kind, "name": str(fields.get("name") or "")}
