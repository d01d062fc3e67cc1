"""Google's contents and parts in the shapes of OpenAI's chat messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

_PLACED = frozenset({"text", "thought", "thoughtSignature", "functionCall"})
"""Fields of a part of an answer that a chat message has a place for, or that no model reads."""
_SPELLINGS = {"functionResponse": "function_response", "functionCall": "function_call", "inlineData": "inline_data"}


def parts_of(content: Mapping[str, Any]) -> list[Any]:
    """The parts of a content; none where they are no list."""
    parts = content.get("parts")
    return [
        _spelled(part) for part in (parts if isinstance(parts, list) else [parts] if isinstance(parts, dict) else [])
    ]


def _spelled(part: Any) -> Any:
    """A part with the usual spelling of its fields; servers accept both."""
    if not isinstance(part, dict):
        return part
    other = {other: usual for usual, other in _SPELLINGS.items() if other in part}
    return {other.get(name, name): value for name, value in part.items()} if other else part


def is_result(part: Any) -> bool:
    """Whether a part is the result of a function."""
    return isinstance(part, dict) and isinstance(part.get("functionResponse"), dict)


def tool_message(part: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a function as a message of the role ``tool``.

    Its content is the text of ``response``'s field ``output`` or ``result``, where it has that alone; else the JSON of
    all.
    """
    result = part["functionResponse"]
    response = result.get("response")
    value = next(iter(response.values())) if isinstance(response, dict) and len(response) == 1 else None
    is_text = isinstance(value, str) and next(iter(response)) in ("output", "result")
    content = value if is_text else json.dumps(response, ensure_ascii=False)
    return {"role": "tool", "tool_call_id": result.get("id"), "name": result.get("name"), "content": content}


def part_of(part: Any) -> Any:
    """One part of a request as a content part of a chat; one without a place has its kind as ``type``."""
    if not isinstance(part, dict):
        return part
    if isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    data = part.get("inlineData")
    if isinstance(data, dict):
        return _media(str(data.get("mimeType", data.get("mime_type"))), str(data.get("data")))
    file = part.get("fileData", part.get("file_data"))
    if isinstance(file, dict):
        address, kind = file.get("fileUri", file.get("file_uri")), str(file.get("mimeType", file.get("mime_type")))
        if kind.startswith("image/") and isinstance(address, str):
            return {"type": "image_url", "image_url": {"url": address}}
    return {"type": _kind(part)}


def _media(mime: str, data: str) -> dict[str, Any]:
    address = f"data:{mime};base64,{data}"
    if mime.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": address}}
    if mime in ("audio/wav", "audio/mp3", "audio/mpeg"):
        return {"type": "input_audio", "input_audio": {"data": data, "format": "wav" if mime == "audio/wav" else "mp3"}}
    return {"type": "file", "file": {"file_data": address}}


def _kind(part: Mapping[str, Any]) -> str:
    return next((name for name in part if name not in _PLACED), "no field")


def kinds_without_place(parts: list[Any]) -> Iterator[str]:
    """Names of the parts of an answer that a chat message has no place for."""
    for part in parts:
        if not isinstance(part, dict):
            yield type(part).__name__
        elif not part.keys() <= _PLACED:
            yield _kind(part)


def declared_in(tool: Any) -> list[Any]:
    """The functions of one of Google's tools in chat's shape; a tool that Google runs itself as ``{"type": NAME}``."""
    if not isinstance(tool, dict):
        return [tool]
    functions = tool.get("functionDeclarations", tool.get("function_declarations"))
    found: list[Any] = []
    for one in functions if isinstance(functions, list) else ():
        found.append({"type": "function", "function": _function(one)} if isinstance(one, dict) else one)
    names = [name for name in tool if name not in ("functionDeclarations", "function_declarations")]
    return [*found, *({"type": name} for name in names)]


def _function(declared: Mapping[str, Any]) -> dict[str, Any]:
    function = {name: declared[name] for name in ("name", "description") if declared.get(name) is not None}
    schema = declared.get("parametersJsonSchema", declared.get("parameters"))
    return function if schema is None else {**function, "parameters": _schema(schema)}


def _schema(value: Any, *, is_schema: bool = True) -> Any:
    """A schema with JSON Schema's names of types (``object``), where Google's are in capitals (``OBJECT``)."""
    if isinstance(value, list):
        return [_schema(item, is_schema=is_schema) for item in value]
    if not isinstance(value, dict):
        return value
    found = {}
    for name, item in value.items():
        if is_schema and name == "type" and isinstance(item, str):
            found[name] = item.lower()
        elif is_schema and name in ("enum", "default", "example", "required"):
            found[name] = item
        else:
            # Names of properties are the user's own: one may be called `type`.
            found[name] = _schema(item, is_schema=not (is_schema and name in ("properties", "$defs", "defs")))
    return found
