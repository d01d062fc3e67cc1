"""The normal form by which requests are compared: requests for the same thing share it."""

from __future__ import annotations

import copy
import json
import os
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote

from rollout_trace import credentials, guard
from rollout_trace.data.exchange import Exchange
from rollout_trace.wire.profiles import capture_fields
from rollout_trace.wire.protocols import model_in_path, protocol_of_request, record_of

from . import normalize
from ._differences import digest_of


@dataclass(frozen=True)
class MatchOptions:
    """Allowed differences between a request and the recorded one."""

    ignore: tuple[str, ...] = ()
    """Fields of the body that are not compared: names (``seed``), or paths with dots, where ``*`` stands for every
    item or field (``messages.*.name``)."""
    normalize: Callable[[Any], Any] | None = None
    """From the parsed body (bytes where it is not JSON) to what is compared in its place. It gets a copy of its own,
    of recorded bodies and of new ones; requests without a body are left alone."""
    order: Literal["recorded", "free"] = "recorded"
    """``free``: calls may come in any order."""

    def __post_init__(self) -> None:
        if isinstance(self.ignore, str):  # A text is a sequence of texts too: its letters.
            raise TypeError(f"ignore={self.ignore!r}: expected a list of field names, [{self.ignore!r}].")
        for path in self.ignore:
            if not isinstance(path, str) or not all(path.split(".")):
                raise ValueError(
                    f"ignore= holds {path!r}: expected a field's name, or a path such as 'messages.*.name'."
                )
        if self.normalize is not None and not callable(self.normalize):
            raise TypeError(f"normalize={self.normalize!r}: expected a function of a request's body.")
        if self.order not in ("recorded", "free"):
            raise ValueError(f"order={self.order!r}: expected 'recorded' or 'free'.")


@dataclass(frozen=True)
class Request:
    """One request that a test made."""

    method: str
    path: str
    """With its query."""
    body: bytes
    content_type: str | None = None
    call: str | None = None
    """Id of the client's call that it is an attempt of; None where that is not known."""


def request_of(exchange: Exchange) -> Request:
    """The request of a recorded exchange."""
    return Request(exchange.method, exchange.path, exchange.request, exchange.request_content_type, exchange.call_id)


_VERSION = re.compile(r"v\d+\w*")
_SECRET = frozenset({"key", "api_key", "api-key", "access_token", "token"})
"""Names of keys in a query. What a cassette has in their place is no key."""


def protocol_of(request: Request) -> str | None:
    """The protocol of a request that generates; None for others."""
    return protocol_of_request(request.method, request.path, request.body)


def key_of(request: Request, options: MatchOptions) -> bytes:
    """A digest that requests of one normal form share. Raises as ``form_of``."""
    return digest_of(form_of(request, options))


def form_of(request: Request, options: MatchOptions) -> dict[str, Any]:
    """What is compared of a request. Raises ValueError: ``normalize`` failed, or returned what is no JSON value."""
    protocol, body = _compared(request, options)
    return {
        "protocol": protocol,
        "request": None if protocol else target_of(request),
        "model": None if "model" in options.ignore else model_in_path(protocol, request.path),
        "stream": _stream_in_path(protocol, request),
        "body": body,
    }


def messages_of(protocol: str | None, body: Any) -> list[Any]:
    """The messages of a body, the system prompt first where it is a field of its own."""
    if not isinstance(body, dict):
        return []
    layout = record_of(protocol).request
    found = body.get(layout.messages)
    # One prompt may be a text or a list of token ids.
    is_one = not isinstance(found, list) or not found or isinstance(found[0], int)
    system = body.get(layout.system) if layout.system is not None else None
    return [one for one in (system, *([found] if is_one else found or [])) if one is not None]


def target_of(request: Request) -> str:
    """Method, path and query of a request, from the version on (``/v1/``), without keys."""
    path, _, query = request.path.partition("?")
    parts = unquote(path).strip("/").split("/")
    versions = [at for at, part in enumerate(parts[:-1]) if _VERSION.fullmatch(part)]
    shown = "/".join(parts[versions[-1] + 1 :] if versions else parts)
    pairs = sorted((name, value) for name, value in parse_qsl(query, True) if name.lower() not in _SECRET)
    return f"{request.method.upper()} /{shown}" + ("?" if pairs else "") + "&".join(map("=".join, pairs))


def parsed(body: bytes) -> Any:
    """A body as JSON; the bytes where it is none, None where it is empty."""
    if not body:
        return None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body


def _compared(request: Request, options: MatchOptions) -> tuple[str | None, Any]:
    # Keys were cut out when the cassette was written; those of this process may be in either.
    protocol, body = protocol_of(request), parsed(credentials.cut_bytes(request.body))
    if options.normalize is not None and request.body:
        body = _normalized(options.normalize, request, body)
    if isinstance(body, dict):
        body = normalize.without(without_capture_fields(body), options.ignore)
        for other, usual in record_of(protocol).request.aliases:
            if other in body and usual not in body:
                body[usual] = body.pop(other)
        _renumber(protocol, body)
    return protocol, body


def compared_body(protocol: str | None, body: dict[str, Any]) -> dict[str, Any]:
    """A copy of a body in the form in which requests are compared: without what a recorder adds, ids numbered."""
    compared = copy.deepcopy(without_capture_fields(body))
    _renumber(protocol, compared)
    for message in _objects(compared.get(record_of(protocol).request.messages)):
        for part in _objects(message.get("content")):
            # Of an answer that is sent back (Responses): no model reads them.
            part.pop("logprobs", None)
    return compared


def without_capture_fields(body: dict[str, Any]) -> dict[str, Any]:
    """The body without what a recorder adds, and no answer's text depends on.

    Whether it does is decided by the server's address, and a cassette may have been recorded at another one.
    """
    added = _captured()
    whole = {name for name, ours in added.items() if not ours} | {"top_logprobs"}
    kept = {name: value for name, value in body.items() if name not in whole}
    for name, ours in added.items():
        value = kept.get(name)
        if isinstance(value, list):
            kept[name] = [item for item in value if item not in ours]
        elif isinstance(value, dict):
            kept[name] = {inner: item for inner, item in value.items() if inner not in ours}
        else:
            continue
        if not kept[name]:
            del kept[name]
    return kept


_captured = cache(capture_fields)


def _normalized(normalize: Any, request: Request, body: Any) -> Any:
    name = getattr(normalize, "__qualname__", None) or repr(normalize)
    place = f"the body of {request.method} {guard.printable(request.path, 200)}"
    try:
        # A copy of what it returned: the function may keep it and change it later.
        found = copy.deepcopy(normalize(body))
    except Exception as error:
        raise ValueError(
            f"normalize={name} failed on {place}: {guard.describe(error)}{_line_of(error)}. It gets each "
            "request's body, recorded and new: parsed JSON, or bytes if it is not JSON."
        ) from error
    try:
        digest_of(found)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"normalize={name} returned a value that is not JSON for {place}: {guard.describe(error)}. "
            "Return the changed body."
        ) from error
    return found


def _line_of(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if len(frames) > 1 else ""


def _stream_in_path(protocol: str | None, request: Request) -> str | None:
    """Returns the form of stream that a path asks for (``alt``); None if it asks for none."""
    if not record_of(protocol).has_path_facts:
        return None
    path, _, query = request.path.partition("?")
    if not unquote(path).rstrip("/").endswith(":streamGenerateContent"):
        return None
    return dict(parse_qsl(query)).get("alt", "json")


def _renumber(protocol: str | None, body: dict[str, Any]) -> None:
    """Puts ``id_1``, ``id_2``, ... in the place of the ids of tool calls and items.

    Frameworks make ids up, and servers give new ones: two requests that differ in them alone ask for the same.
    """
    messages = body.get(record_of(protocol).request.messages)
    numbers: dict[str, str] = {}
    for message in _objects([messages] if isinstance(messages, dict) else messages):
        # Not what is deeper: arguments and results of tools may have ids that the model reads.
        parts = [part for name in ("tool_calls", "content", "parts") for part in _objects(message.get(name))]
        for holder in (message, *parts, *_objects([part[name] for part in parts for name in _CALLS if name in part])):
            for key in _IDS:
                if isinstance(holder.get(key), str):
                    holder[key] = numbers.setdefault(holder[key], f"id_{len(numbers) + 1}")


_IDS = ("id", "call_id", "tool_call_id", "tool_use_id")
_CALLS = ("functionCall", "function_call", "functionResponse", "function_response")


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
