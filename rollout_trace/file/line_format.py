"""Decodes lines into records of one type, with errors that name the place, what was expected and what was found."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import msgspec

from rollout_trace.errors import FormatError
from rollout_trace.file.records import NOTE_SCHEMA, BodyRecord, Head

T = TypeVar("T")

_head = msgspec.json.Decoder(Head)
# Bytes that are not UTF-8 raise UnicodeDecodeError; msgspec's own errors are ValueErrors only from 0.20 on.
NOT_JSON = (msgspec.DecodeError, ValueError)


class BadLine(ValueError):
    """A line does not match the format. The message begins with the path in the record, where there is one.

    Args:
        path: ``$.steps[2].tokens.end``; empty: the line as a whole.
        problem: what was expected, and what was found. Without a path, it may begin with one.
        code: name of the rule that is broken: one of ``validate.RULES``.
    """

    def __init__(self, path: str, problem: str, code: str = "wrong-type") -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        if not path and problem.startswith("$"):
            path, _, problem = problem.partition(": ")
        self.path, self.problem, self.code = path, problem, code

    def at(self, place: str) -> FormatError:
        """The error for users. ``place``: file and line."""
        error = FormatError(f"{place}, {self}" if str(self).startswith("$") else f"{place}: {self}")
        error.__cause__ = self
        return error


def body_bytes(record: BodyRecord, path: str) -> bytes:
    """The bytes of a record. ``path``: of the record in its line.

    Raises:
        BadLine: its text has half a surrogate pair, or its base64 is none.
    """
    if record.base64 is None:
        try:
            return (record.text or "").encode()
        except UnicodeEncodeError as error:
            problem = f"expected the text of a body, got half a surrogate pair: {error}"
            raise BadLine(f"{path}.text", problem, "body-bytes") from error
    try:
        return base64.b64decode(record.base64, validate=True)
    except ValueError as error:  # Not binascii.Error: text that is not ASCII raises a plain ValueError.
        raise BadLine(f"{path}.base64", f"expected base64, got something else: {error}", "body-bytes") from error


class LineFormat(Generic[T]):
    """Decodes the lines of one schema into records of one type.

    Args:
        schema: what ``schema`` is in these lines: name, slash, version.
        kind: the type of the record, a ``msgspec.Struct`` with a field ``schema``.
    """

    def __init__(self, schema: str, kind: type[T]) -> None:
        self._schema = schema
        self._kind = kind
        self._decoder = msgspec.json.Decoder(kind)

    def decode(self, line: bytes) -> T:
        """The record of a line. Raises BadLine: the line is not JSON, or does not match the format."""
        record = self._parse(line)
        _check_schema(record.schema, self._schema)  # type: ignore[attr-defined]
        return record

    def _parse(self, line: bytes) -> T:
        try:
            return self._decoder.decode(line)
        except msgspec.ValidationError as error:
            raise _validation_error(error, line, self._schema) from error
        except NOT_JSON as error:
            if b"\\ud" in line or b"\\uD" in line:
                return self._with_lone_surrogates(line, error)
            raise _not_json_error(error) from error

    def _with_lone_surrogates(self, line: bytes, first: Exception) -> T:
        """Decodes a line whose texts have lone surrogates, which models do produce. msgspec refuses them."""
        try:
            value = json.loads(line, parse_constant=_refuse_constant)
        except ValueError:
            raise _not_json_error(first) from first
        try:
            return msgspec.convert(_with_raw(value), self._kind)
        except msgspec.ValidationError as error:
            raise _validation_error(error, line, self._schema) from error
        except UnicodeEncodeError as error:  # Where a time is expected.
            problem = f"expected times as in RFC 3339, got text with half a surrogate pair: {error}"
            raise BadLine("", problem, "bad-time") from error


def at_any_depth(function: Callable[..., T], *args: Any) -> T:
    """Calls the function; where it reaches the limit of recursion, once more in a thread of its own.

    The limit counts the caller's frames too, and whether a line can be read must not depend on them.

    Raises:
        BadLine: the limit was reached there as well.
    """
    try:
        return function(*args)
    except RecursionError:
        return _on_a_fresh_stack(function, *args)


def _on_a_fresh_stack(function: Callable[..., T], *args: Any) -> T:
    outcome: list[tuple[T | None, Exception | None]] = []

    def work() -> None:
        try:
            outcome.append((function(*args), None))
        except Exception as error:
            outcome.append((None, error))

    thread = threading.Thread(target=work, name="rollout_trace reader")
    thread.start()
    thread.join()
    found, error = outcome[0]
    if isinstance(error, RecursionError):
        raise BadLine("", "expected values that can be decoded, got lists or objects nested too deeply", "too-deep")
    if error is not None:
        raise error
    return cast("T", found)


def _with_raw(line: Any) -> Any:
    """A decoded line, with the values as bytes that the records have as bytes: ``convert`` takes no others there."""
    steps = line.get("steps") if isinstance(line, dict) else None
    for step in steps if isinstance(steps, list) else ():
        tokens = step.get("tokens") if isinstance(step, dict) else None
        if isinstance(tokens, dict) and "top_logprobs" in tokens:
            tokens["top_logprobs"] = msgspec.Raw(json.dumps(tokens["top_logprobs"], separators=(",", ":")).encode())
    return line


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _not_json_error(error: Exception) -> BadLine:
    if "truncated" in str(error):
        problem = "expected a whole line of JSON, got one that ends inside a value (its writer was stopped?)"
        return BadLine("", problem, "truncated-line")
    code = "not-utf8" if isinstance(error, UnicodeDecodeError) else "not-json"
    return BadLine("", f"expected a line of JSON, got something else: {error}", code)


def _check_schema(schema: str, expected: str) -> None:
    if schema == expected:
        return
    name, _, version = schema.partition("/")
    if name == expected.partition("/")[0] and version.isdigit():
        raise BadLine(
            "$.schema",
            f"expected {expected!r}, got {schema!r}: the line was written by a newer version. "
            "Upgrade in a newer checkout, with: pip install .",
            "newer-version",
        )
    is_note = name == NOTE_SCHEMA.partition("/")[0]
    notes = ". It is a line of notes: read the file that they belong to, and they are applied" if is_note else ""
    raise BadLine("$.schema", f"expected {expected!r}, got {schema!r}{notes}", "unknown-schema")


_RENAMED = {
    "Invalid RFC3339 encoded datetime": "Expected a time as in RFC 3339",
    "Expected datetime with a timezone component": "Expected a time with a time zone",
}


def _validation_error(error: msgspec.ValidationError, line: bytes, schema: str) -> BadLine:
    """The ``BadLine`` for an error of the decoder; adds the value found, which the decoder often leaves out."""
    try:
        # A line of a newer version may fail anywhere: then its version is the reason, not the field.
        _check_schema(_head.decode(line).schema, schema)
    except BadLine as newer:
        return newer
    except NOT_JSON:
        pass
    return type_error(error, lambda: json.loads(line))


def type_error(error: msgspec.ValidationError, load: Callable[[], Any], prefix: str = "$") -> BadLine:
    """The ``BadLine`` for an error of the decoder.

    Args:
        load: the value that was decoded, as ``json`` loads it.
        prefix: path of that value in its line.
    """
    text, _, path = str(error).replace("`", "").replace(" | null", "").partition(" - at ")
    path = path or "$"
    missing = re.fullmatch(r"Object missing required field (\w+)", text)
    if missing:
        problem = "the required field is missing"
        return BadLine(f"{prefix}{path[1:]}.{missing[1]}", problem, "missing-field")
    code = _code(text, f"{prefix}{path[1:]}")
    text = _RENAMED.get(text, text)
    text = text[:1].lower() + text[1:]
    return BadLine(f"{prefix}{path[1:]}", text if ", got " in text else f"{text}, got {_value_at(load, path)}", code)


def _code(text: str, path: str) -> str:
    """The rule that is broken, by the decoder's words and the place."""
    if text in _RENAMED:
        return "bad-time"
    if text.startswith(("Expected int >=", "Expected int <=")):
        return "token-id" if ".ids[" in path else "number-range"
    return "array-data" if "base64" in text else "wrong-type"


def _value_at(load: Callable[[], Any], path: str) -> str:
    try:
        value = load()
        for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", path):
            value = value[name] if name else value[int(index)]
    except (ValueError, LookupError, TypeError):
        return "another value"
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
