"""The normal form of a request: what two requests have in common that ask for the same."""

from __future__ import annotations

import copy
import json
import os
import re
import traceback
from collections.abc import Iterator
from functools import cache
from hashlib import blake2b
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

from rollout_trace import credentials, guard
from rollout_trace.wire.profiles import capture_fields
from rollout_trace.wire.protocols import model_in_path, protocol_of_request, record_of

from . import _body_paths, _call_ids
from ._requests import MatchOptions, Request

_VERSION = re.compile(r"v\d+\w*")
_SECRET = frozenset({"key", "api_key", "api-key", "access_token", "token"})
"""Names of keys in a query. What a cassette has in their place is no key."""


class Message(NamedTuple):
    """One message of a request."""

    name: str
    """``message 4``; ``prompt``, or ``prompt 2`` of several; ``system prompt`` where that is a field of its own."""
    role: str
    value: Any
    digest: bytes


class Tool(NamedTuple):
    """One tool of a request."""

    name: str
    value: Any
    digest: bytes


class NormalForm(NamedTuple):
    """A request, taken apart."""

    protocol: str | None
    """None: it generates nothing, and ``settings`` are its whole body."""
    target: str
    """Method and path, where the request generates nothing."""
    model: str | None
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    settings: dict[str, Any]
    body: Any
    """The whole normal body."""


def protocol_of(request: Request) -> str | None:
    """The protocol of a request that generates; None for others."""
    return protocol_of_request(request.method, request.path, request.body)


def key_of(request: Request, options: MatchOptions) -> bytes:
    """A digest that requests of one normal form share.

    Raises:
        ValueError: ``normalize`` failed, or returned what is no JSON value.
    """
    protocol, body = _compared(request, options)
    head = [protocol, _model_in_path(protocol, request, options), _stream_in_path(protocol, request)]
    head.append(None if protocol else target_of(request))
    return digest_of([head, body])


def form_of(request: Request, options: MatchOptions) -> NormalForm:
    """The parts of a request's normal form. Raises as ``key_of``."""
    protocol, body = _compared(request, options)
    target = "" if protocol else target_of(request)
    rest = dict(body) if isinstance(body, dict) else {}
    model = _model_in_path(protocol, request, options)
    if model is None and isinstance(rest.get("model"), str):
        model = rest.pop("model")
    if protocol is None:
        return NormalForm(None, target, model, (), (), rest, body)
    messages, tools = tuple(_messages(protocol, rest)), tuple(_tools(rest))
    settings = _settings(protocol, rest)
    if (stream := _stream_in_path(protocol, request)) is not None:
        settings["stream"] = stream
    return NormalForm(protocol, target, model, messages, tools, settings, body)


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


def digest_of(value: Any) -> bytes:
    """Digest of a JSON value. Equal values have equal ones: 1 and 1.0, objects with their keys in any order."""
    text = json.dumps(_plain(value), sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=16).digest()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _compared(request: Request, options: MatchOptions) -> tuple[str | None, Any]:
    # Keys were cut out when the cassette was written; those of this process may be in either.
    protocol, body = protocol_of(request), parsed(credentials.cut_bytes(request.body))
    if options.normalize is not None and request.body:
        body = _normalized(options.normalize, request, body)
    if isinstance(body, dict):
        body = _body_paths.without(_without_capture_fields(body), options.ignore)
        for other, usual in record_of(protocol).request.aliases:
            if other in body and usual not in body:
                body[usual] = body.pop(other)
        _call_ids.renumber(protocol, body)
    return protocol, body


def _without_capture_fields(body: dict[str, Any]) -> dict[str, Any]:
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


@cache
def _captured() -> dict[str, frozenset[str]]:
    return capture_fields()


def _normalized(normalize: Any, request: Request, body: Any) -> Any:
    name = getattr(normalize, "__qualname__", None) or repr(normalize)
    place = f"the body of {request.method} {guard.printable(request.path, 200)}"
    try:
        # A copy of what it returned: the function may keep it and change it later.
        found = copy.deepcopy(normalize(body))
    except Exception as error:
        raise ValueError(
            f"normalize={name} failed on {place}: {guard.describe(error)}{_line_of(error)}. It gets the body of every "
            "request that has one, recorded and new: parsed, or as bytes where it is not JSON."
        ) from error
    try:
        digest_of(found)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"normalize={name} returned what is no JSON value for {place}: {guard.describe(error)}. "
            "It should return the body, changed."
        ) from error
    return found


def _line_of(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if len(frames) > 1 else ""


def _model_in_path(protocol: str | None, request: Request, options: MatchOptions) -> str | None:
    return None if "model" in options.ignore else model_in_path(protocol, request.path)


def _stream_in_path(protocol: str | None, request: Request) -> str | None:
    """How a path asks for a stream; None where it does not."""
    if not record_of(protocol).has_path_facts:
        return None
    path, _, query = request.path.partition("?")
    if not unquote(path).rstrip("/").endswith(":streamGenerateContent"):
        return None
    return dict(parse_qsl(query)).get("alt", "json")


def _messages(protocol: str, rest: dict[str, Any]) -> Iterator[Message]:
    layout = record_of(protocol).request
    if layout.system is not None and rest.get(layout.system) is not None:
        value = rest.pop(layout.system)
        yield Message("system prompt", "system", value, digest_of(value))
    found = rest.get(layout.messages)
    # One prompt may be a text or a list of token ids.
    is_one = isinstance(found, (str, dict)) or (isinstance(found, list) and found and isinstance(found[0], int))
    if not is_one and not isinstance(found, list):
        return
    del rest[layout.messages]
    for number, value in enumerate([found] if is_one else found or [], 1):
        name = "message" if isinstance(value, dict) else "prompt"
        numbered = name if is_one and name == "prompt" else f"{name} {number}"
        yield Message(numbered, _role(value), value, digest_of(value))


def _role(value: Any) -> str:
    if isinstance(value, dict):
        return str(value.get("role") or value.get("type") or "user")
    return "prompt"


def _tools(rest: dict[str, Any]) -> Iterator[Tool]:
    tools = rest.get("tools")
    if not isinstance(tools, list):
        return
    del rest["tools"]
    for tool in tools:
        declared = tool.get("functionDeclarations", tool.get("function_declarations")) if isinstance(tool, dict) else 0
        for one in declared if isinstance(declared, list) else [tool]:
            yield Tool(_tool_name(one), one, digest_of(one))


def _tool_name(tool: Any) -> str:
    if not isinstance(tool, dict):
        return str(tool)
    function = tool.get("function")
    inner = function if isinstance(function, dict) else tool
    return str(inner.get("name") or tool.get("server_label") or tool.get("type") or next(iter(tool), "a tool"))


def _settings(protocol: str, rest: dict[str, Any]) -> dict[str, Any]:
    """The other fields; those of an object of settings (``options.seed``) under their paths."""
    name = record_of(protocol).request.settings
    inner = rest.get(name) if name is not None else None
    if not isinstance(inner, dict):
        return rest
    found = {key: value for key, value in rest.items() if key != name}
    return found | {f"{name}.{key}": value for key, value in inner.items()}
