"""Writes a note into the line of its trajectory. What the note does not touch stays the same to the byte."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import orjson

from rollout_trace.data.user_values import brief
from rollout_trace.file.notes import STEP_VALUES, metadata_of
from rollout_trace.file.plain import dumps
from rollout_trace.file.records import NoteRecord

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_list = msgspec.json.Decoder(list[msgspec.Raw])
_any = msgspec.json.Decoder()


def fold(line: bytes, note: NoteRecord) -> bytes:
    """The line with the values of a note, without a newline. Steps that are not there are passed over.

    Args:
        line: of a file, as the reader accepts it.
        note: of its trajectory.
    """
    fields = _members(line)
    if note.reward is not None:
        fields["reward"] = note.reward
    for name in ("rewards", "metrics"):
        given = getattr(note, name)
        if given is not None:
            fields[name] = {**(_value(fields.get(name)) or {}), **given}
    had = _named(fields.get("metadata"))
    metadata = metadata_of(note, had)
    if metadata is not had:
        fields["metadata"] = metadata
    if note.steps:
        fields["steps"] = _with_values(_items(fields.get("steps", b"[]")), note)
    return dumps(_as_fragments(fields))


def without_mark(line: bytes) -> bytes:
    """The line without the mark of its references, to which its media were restored; ``schema`` comes first."""
    members = _members(line)
    members.pop("media", None)
    return dumps(_as_fragments({"schema": members["schema"], **members}))


def steps_missing(line: bytes, note: NoteRecord) -> list[str]:
    """The steps that a note names and the line does not have, as ``step 7 of trajectory 'a'``."""
    if not note.steps:
        return []
    steps = [_members(record) for record in _items(_members(line).get("steps", b"[]"))]
    missing = (given for given, place in zip(note.steps, _places(steps, note), strict=True) if place is None)
    names = (f"step {brief(one.index if one.id is None else one.id)}" for one in missing)
    return [f"{name} of trajectory {brief(note.id)}" for name in dict.fromkeys(names)]


def _places(steps: list[dict[str, Any]], note: NoteRecord) -> list[int | None]:
    """Where the steps that a note names stand in a line; None for one that is not there."""
    by_id = {_value(step["id"]): at for at, step in enumerate(steps)}
    indices = [_value(step.get("index")) for step in steps]
    by_index = {at if index is None else index: at for at, index in enumerate(indices)}
    return [
        by_index.get(given.index) if given.id is None and given.index is not None else by_id.get(given.id)
        for given in note.steps
    ]


def _with_values(records: list[Any], note: NoteRecord) -> list[Any]:
    steps = [_members(record) for record in records]
    for given, place in zip(note.steps, _places(steps, note), strict=True):
        if place is None:
            continue
        step = steps[place]
        for name in STEP_VALUES:
            value = getattr(given, name)
            if value is not None:
                step[name] = {**(_named(step.get(name)) or {}), **value} if name == "metadata" else value
    return steps


def _members(value: Any) -> dict[str, Any]:
    """The members of an object: bytes of JSON that are not decoded, where they can be told apart so."""
    if isinstance(value, dict):
        return value
    try:
        return dict(_object.decode(value))
    except (msgspec.DecodeError, ValueError):  # msgspec refuses lone surrogates, which the json module accepts.
        members: dict[str, Any] = json.loads(bytes(value))
        return members


def _named(value: Any) -> dict[str, Any] | None:
    """The members of an object that may be missing or null."""
    return None if value is None or (isinstance(value, msgspec.Raw) and bytes(value) == b"null") else _members(value)


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else list(_list.decode(value))


def _value(value: Any) -> Any:
    if not isinstance(value, (bytes, msgspec.Raw)):
        return value
    try:
        return _any.decode(value)
    except (msgspec.DecodeError, ValueError):
        return json.loads(bytes(value))


def _as_fragments(value: Any, depth: int = 5) -> Any:
    """The value with bytes that are not decoded as parts that are written as they are.

    Args:
        value: the members of a line.
        depth: how deep such bytes can lie: line, steps, step, metadata, value.
    """
    if isinstance(value, msgspec.Raw):
        return orjson.Fragment(bytes(value))
    if depth and isinstance(value, dict):
        return {name: _as_fragments(item, depth - 1) for name, item in value.items()}
    if depth and isinstance(value, list):
        return [_as_fragments(item, depth - 1) for item in value]
    return value
