"""Google's content parts: merging those of a stream, the completion that parts make, contents as chat messages."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from rollout_trace.data.model import Completion, ToolCall
from rollout_trace.wire.chat_messages import NO_OBJECT, content_of, drop_if, kind_of_part, message_of
from rollout_trace.wire.lenient import compact
from rollout_trace.wire.reading import text_of

if TYPE_CHECKING:
    from rollout_trace.report import ExportReport

_TEXT_FIELDS = frozenset({"text", "thought", "thoughtSignature"})
_STEP = re.compile(r"\.([^.\[\]]+)|\[(?:'([^']*)'|\"([^\"]*)\"|(\d+))\]")
"""One step of a JSON path: a name, a quoted name, or a position."""
_VALUES = ("stringValue", "numberValue", "boolValue", "nullValue")
_LONGEST_LIST = 10_000
"""Most items of a list in arguments that come in pieces: a position is a number of the server's."""


class Parts:
    """The parts of one candidate, from its only body or from all chunks of a stream."""

    def __init__(self) -> None:
        self.problem: str | None = None
        """A sentence about the first part that is none."""
        self._parts: list[_Part] = []

    def add(self, values: Any, raw: list[Raw | None]) -> None:
        """Reads the parts of the next chunk. ``raw``: the JSON of the arguments of each part's function call."""
        if not isinstance(values, list):
            self.problem = self.problem or "`content.parts` is no list"
            return
        for position, value in enumerate(values):
            if not isinstance(value, dict):
                self.problem = self.problem or "an item of `content.parts` is no object"
                continue
            fields = {name: item for name, item in value.items() if item is not None}
            arguments = raw[position] if position < len(raw) else None
            if not (self._parts and self._parts[-1].takes(fields)):
                self._parts.append(_Part(fields, arguments))

    def completion(self) -> Completion:
        """The completion that the parts make.

        ``content`` is the text of the parts, ``reasoning`` that of the thoughts, and ``tool_calls`` are the function
        calls. Where these fields lose something (signatures, media, code, another order), ``extra["parts"]`` has all
        parts, whole and in order.
        """
        # A last chunk has an empty text, where the whole answer has none.
        kept = [part for part in self._parts if not (len(self._parts) > 1 and part.is_empty)] or self._parts[:1]
        values = [part.value() for part in kept]
        texts = [value["text"] for value in values if _is_text(value) and not value.get("thought")]
        thoughts = [value["text"] for value in values if _is_text(value) and value.get("thought")]
        calls = [_tool_call(part) for part in kept if part.is_call]
        content = "".join(texts) if texts else None
        return Completion(
            content=content or (None if len(values) != len(texts) else content),
            reasoning="".join(thoughts) or None,
            tool_calls=tuple(calls),
            extra=None if _is_lossless(values) else {"parts": values},
        )


class _Part:
    """One part, and what later chunks add to it."""

    def __init__(self, fields: dict[str, Any], arguments: Raw | None) -> None:
        self._fields = fields
        self._raw = arguments
        self._texts: list[str] = []
        call = fields.get("functionCall")
        is_streamed = isinstance(call, dict) and (bool(call.get("willContinue")) or "partialArgs" in call)
        self._call = _StreamedCall(fields["functionCall"]) if is_streamed else None

    @property
    def is_call(self) -> bool:
        return isinstance(self._fields.get("functionCall"), dict)

    @property
    def is_empty(self) -> bool:
        """Whether it is a text without characters, and nothing else."""
        return self._fields.keys() <= {"text", "thought"} and not self._fields.get("text") and not any(self._texts)

    def takes(self, fields: dict[str, Any]) -> bool:
        """Merges the next part into this one; False where it is another part."""
        if self._call is not None:
            return self._call.takes(fields)
        mine = self._fields
        if not (_is_plain_text(mine) and _is_plain_text(fields)):
            return False
        # A signature ends its part. Thoughts and answer are parts of their own.
        if bool(mine.get("thought")) != bool(fields.get("thought")) or ("thoughtSignature" in mine and fields["text"]):
            return False
        self._texts.append(fields["text"])
        if "thoughtSignature" in fields:
            mine["thoughtSignature"] = fields["thoughtSignature"]
        return True

    def value(self) -> dict[str, Any]:
        """The part as an unstreamed answer has it."""
        if self._call is not None:
            return {**self._fields, "functionCall": self._call.value()}
        return {**self._fields, "text": "".join([self._fields["text"], *self._texts])} if self._texts else self._fields

    def arguments(self) -> str | None:
        """The arguments of a function call, as the server spelled them; None where the call has none."""
        if self._raw is not None and self._call is None:
            return bytes(self._raw).decode("utf-8", "replace")
        arguments = self.value()["functionCall"].get("args")
        return None if arguments is None else compact(arguments)


class _StreamedCall:
    """A function call whose arguments come in pieces (``partialArgs``, of Vertex AI): values at JSON paths."""

    def __init__(self, call: dict[str, Any]) -> None:
        self._fields = {name: item for name, item in call.items() if name not in ("partialArgs", "willContinue")}
        self._arguments: dict[str, Any] = dict(call["args"]) if isinstance(call.get("args"), dict) else {}
        self._unread: list[Any] = []
        self._is_open = True
        self._add(call)

    def takes(self, fields: dict[str, Any]) -> bool:
        """Reads the next piece; False where the call has ended, or the part is something else."""
        call = fields.get("functionCall")
        if not self._is_open or not isinstance(call, dict) or call.get("name"):
            return False
        self._add(call)
        return True

    def value(self) -> dict[str, Any]:
        """The call as it is without streamed arguments; pieces that could not be placed are in ``partialArgs``."""
        rest = {"partialArgs": self._unread} if self._unread else {}
        return {**self._fields, "args": self._arguments, **rest}

    def _add(self, call: dict[str, Any]) -> None:
        pieces = call.get("partialArgs")
        for piece in pieces if isinstance(pieces, list) else ():
            if not (isinstance(piece, dict) and _place(self._arguments, piece)):
                self._unread.append(piece)
        self._is_open = bool(call.get("willContinue"))


def _place(arguments: dict[str, Any], piece: dict[str, Any]) -> bool:
    """Puts one piece where its path leads; texts are appended to what is there. False for a path that leads nowhere."""
    path = piece.get("jsonPath")
    name = next((name for name in _VALUES if name in piece), None)
    if name is None or not isinstance(path, str) or not path.startswith("$"):
        return False
    steps = [int(at) if at else (one or two or three) for one, two, three, at in _STEP.findall(path)]
    if not steps or _STEP.sub("", path) != "$":
        return False
    holder: Any = arguments
    for step, following in itertools.pairwise(steps):
        if not _has_place(holder, step):
            return False
        empty: Any = [] if isinstance(following, int) else {}
        if isinstance(holder, list):
            holder[step] = empty if holder[step] is None else holder[step]
            holder = holder[step]
        else:
            holder = holder.setdefault(step, empty)
    last = steps[-1]
    if not _has_place(holder, last):
        return False
    old = holder[last] if isinstance(holder, list) else holder.get(last)
    new = None if name == "nullValue" else piece[name]
    holder[last] = old + new if isinstance(old, str) and isinstance(new, str) else new
    return True


def _has_place(holder: Any, step: Any) -> bool:
    """Whether a step leads into an object or a list; a list is made long enough."""
    if isinstance(holder, list) and isinstance(step, int) and step < _LONGEST_LIST:
        holder.extend([None] * (step + 1 - len(holder)))
        return True
    return isinstance(holder, dict) and isinstance(step, str)


def _is_plain_text(fields: Mapping[str, Any]) -> bool:
    return fields.keys() <= _TEXT_FIELDS and isinstance(fields.get("text"), str)


def _is_text(value: Mapping[str, Any]) -> bool:
    return isinstance(value.get("text"), str)


def _is_lossless(values: list[dict[str, Any]]) -> bool:
    """True where the parts are at most one thought, then one text, then function calls: nothing is lost."""
    ranks = []
    for value in values:
        if value.keys() == {"functionCall"} and isinstance(value["functionCall"], dict):
            ranks.append(2)
        elif _is_plain_text(value) and "thoughtSignature" not in value:
            ranks.append(0 if value.get("thought") else 1)
        else:
            return False
    return ranks == sorted(ranks) and ranks.count(0) <= 1 and ranks.count(1) <= 1


def _tool_call(part: _Part) -> ToolCall:
    value = part.value()
    call = value["functionCall"]
    rest = {name: item for name, item in call.items() if name not in ("id", "name", "args")}
    rest.update((name, item) for name, item in value.items() if name != "functionCall")
    call_id, name = text_of(call.get("id")), text_of(call.get("name"))
    return ToolCall(id=call_id, name=name, arguments=part.arguments(), extra=rest or None)


def completion_of(values: list[Any]) -> Completion:
    """The completion that whole parts make, as of a model's earlier answer in a request."""
    parts = Parts()
    for value in values:
        parts.add([value], [])
    return parts.completion()


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


def _is_result(part: Any) -> bool:
    """Whether a part is the result of a function."""
    return isinstance(part, dict) and isinstance(part.get("functionResponse"), dict)


def _tool_message(part: Mapping[str, Any]) -> dict[str, Any]:
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


def _part_of(part: Any) -> Any:
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
    return {"type": kind_of_part(part)}


def _media(mime: str, data: str) -> dict[str, Any]:
    address = f"data:{mime};base64,{data}"
    if mime.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": address}}
    if mime in ("audio/wav", "audio/mp3", "audio/mpeg"):
        return {"type": "input_audio", "input_audio": {"data": data, "format": "wav" if mime == "audio/wav" else "mp3"}}
    return {"type": "file", "file": {"file_data": address}}


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


def to_chat(sent: tuple[Any, ...], report: ExportReport | None) -> Iterator[dict[str, Any]]:
    """One of Google's contents as chat messages: several where it has results of functions."""
    (message,) = sent
    if not isinstance(message, dict):
        drop_if(report, True, NO_OBJECT)
        return
    role, parts = message.get("role") or "user", parts_of(message)
    if role == "model":
        yield message_of(completion_of(parts), report)
        return
    # Chat has a message per result; texts before and between them keep their places.
    for are_results, values in itertools.groupby(parts, _is_result):
        if are_results:
            yield from map(_tool_message, values)
        else:
            yield {"role": role, "content": content_of([_part_of(value) for value in values], report)}
