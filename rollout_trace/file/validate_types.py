"""All places of a line whose values are not of the format's types. The reader stops at the first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from rollout_trace.file.decode import BadLine, type_error


def json_problems(line: bytes) -> tuple[Any, list[BadLine]]:
    """The value of a line, and where it has a name twice or a constant that is no JSON (NaN), which is None then.

    The value is None where the line is not JSON: then the reader's own error is all there is.
    """
    try:
        value = json.loads(line, parse_constant=_Constant, object_pairs_hook=_Pairs)
        found: list[BadLine] = []
        return _plain(value, "$", found), found
    except (ValueError, RecursionError):
        return None, []


def type_problems(value: Any, kind: Any, path: str = "$") -> Iterator[BadLine]:
    """What is wrong with the types of a value.

    Args:
        value: as ``json`` loads it. Fields that the reader keeps as bytes are removed from it.
        kind: the type that it has to be, or an annotation.
        path: of the value in its line.
    """
    arms = _arms(kind)
    struct = next((arm for arm in arms if isinstance(arm, type) and issubclass(arm, msgspec.Struct)), None)
    if struct is not None and isinstance(value, dict):
        yield from _field_problems(value, struct, path)
        return
    items = next((get_args(arm)[0] for arm in arms if get_origin(arm) is list), None)
    holds_records = any(isinstance(arm, type) and issubclass(arm, msgspec.Struct) for arm in _arms(items))
    if isinstance(value, list) and holds_records:
        for at, item in enumerate(value):
            yield from type_problems(item, items, f"{path}[{at}]")
        return
    problem = _problem(value, kind, path)
    if problem is None:
        return
    # A list or an object of plain values: each of them has its own place.
    inside: list[BadLine] = []
    if isinstance(value, list) and items is not None:
        inside = [one for at, item in enumerate(value) for one in type_problems(item, items, f"{path}[{at}]")]
    values = next((get_args(arm)[1] for arm in arms if get_origin(arm) is dict), None)
    if isinstance(value, dict) and values is not None:
        inside = [one for name, item in value.items() for one in type_problems(item, values, f"{path}[{name!r}]")]
    yield from inside or [problem]


def _field_problems(value: dict[str, Any], struct: type[msgspec.Struct], path: str) -> Iterator[BadLine]:
    for field in msgspec.structs.fields(struct):
        name = field.encode_name
        if name not in value:
            if field.required:
                yield BadLine(f"{path}.{name}", "expected a value, got none: the field is required", "missing-field")
        elif msgspec.Raw in _arms(field.type):
            if not isinstance(value.pop(name), (list, type(None))):
                yield BadLine(f"{path}.{name}", "expected a list, got another value", "top-logprobs-type")
        else:
            yield from type_problems(value[name], field.type, f"{path}.{name}")


def _problem(value: Any, kind: Any, path: str) -> BadLine | None:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        return type_error(error, lambda: value, path)
    except UnicodeEncodeError as error:  # Where a time is expected.
        return BadLine(path, f"expected a time as in RFC 3339, got half a surrogate pair: {error}", "bad-time")
    except RecursionError:
        return BadLine(path, "expected values that can be decoded, got lists or objects nested too deeply", "too-deep")
    return None


def _arms(kind: Any) -> tuple[Any, ...]:
    """The types that a value may be of, without what annotates them."""
    if get_origin(kind) is Annotated:
        return _arms(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return tuple(arm for one in get_args(kind) for arm in _arms(one))
    return (kind,)


# JSON


class _Constant(str):
    """NaN, Infinity or -Infinity, where it stood."""

    __slots__ = ()


class _Pairs(list[tuple[str, Any]]):
    """The members of an object, names that occur twice included."""


def _plain(value: Any, path: str, found: list[BadLine]) -> Any:
    """The value with dicts for ``_Pairs`` and None for ``_Constant``."""
    if isinstance(value, _Constant):
        found.append(BadLine(path, f"expected a finite number, got {value!s}: JSON has none", "json-constant"))
        return None
    if isinstance(value, _Pairs):
        members: dict[str, Any] = {}
        for name, item in value:
            if name in members:
                found.append(
                    BadLine(f"{path}.{name}", "expected the name once in its object, got it twice", "duplicate-key")
                )
            members[name] = _plain(item, f"{path}.{name}", found)
        return members
    if isinstance(value, list):
        return [_plain(item, f"{path}[{at}]", found) for at, item in enumerate(value)]
    return value
