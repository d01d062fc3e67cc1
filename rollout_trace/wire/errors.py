"""Errors in the shapes of several providers."""

from __future__ import annotations

from typing import Any

from rollout_trace import credentials
from rollout_trace.data.model import ErrorInfo
from rollout_trace.wire.lenient import loads

_LONGEST = 1024 * 1024


def error_of(body: bytes, status: int) -> ErrorInfo:
    """The error in the body of a failed answer, of any shape.

    A text that is no JSON is cut to 2000 characters, and so is any body over 1 MiB: it may be read while its caller
    waits for the exception.
    """
    is_long = len(body) > _LONGEST
    # Before it is cut short: half a key at the limit would not be found.
    body = credentials.cut_bytes(body[:_LONGEST])
    try:
        value = loads(b"" if is_long else body)
    except ValueError:
        text = body.decode("utf-8", "replace").strip()
        return ErrorInfo(type=_kind(status), message=text[:2000] or "empty body", status=status)
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        # Google's error of a request for a stream.
        value = value[0]
    if isinstance(value, dict) and value.get("error"):
        # Also with a status of success: some gateways and servers report a failure so.
        return error_value(value["error"], status if status >= 400 else None)
    return error_value(value, status)


def error_value(value: Any, status: int | None = None) -> ErrorInfo:
    """The error in a JSON value: an object (OpenAI's, FastAPI's ``detail``) or a text."""
    if not isinstance(value, dict):
        return ErrorInfo(type=_kind(status), message=str(value) or "empty body", status=status)
    code, name = value.get("code"), value.get("status")
    # Google's name of the kind of error (`RESOURCE_EXHAUSTED`), where the field is not something else.
    is_google = isinstance(name, str) and name.isupper()
    message = next((value[name] for name in ("message", "detail", "details") if value.get(name)), value)
    return ErrorInfo(
        type=str(value.get("type") or (name if is_google else None) or _kind(status)),
        message=message if isinstance(message, str) else str(message),
        code=code if isinstance(code, (str, int)) and not isinstance(code, bool) else None,
        status=status,
    )


def _kind(status: int | None) -> str:
    if status is None:
        return "ProviderError"
    return "HTTPError" if status >= 400 else "UnexpectedBody"


def brief(data: bytes) -> str:
    """At most the first 80 bytes, as ``repr``, for a message."""
    data = credentials.cut_bytes(data)
    return repr(data if len(data) <= 80 else data[:77] + b"...")
