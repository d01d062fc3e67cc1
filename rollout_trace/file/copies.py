"""Copies lines to another file or a stream, with their notes folded in and their media."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import orjson

from rollout_trace.data.user_values import brief
from rollout_trace.errors import FormatError
from rollout_trace.file.addresses import replacing
from rollout_trace.file.compression import compressor
from rollout_trace.file.line_format import at_any_depth
from rollout_trace.file.media import MediaFolder, MissingMedia, _mark_of, folder_of, name_of_folder, references, restore
from rollout_trace.file.notes import STEP_VALUES, metadata_of
from rollout_trace.file.plain import dumps, loads
from rollout_trace.file.records import NoteRecord, TrainerRecord

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_list = msgspec.json.Decoder(list[msgspec.Raw])


def fold(line: bytes, note: NoteRecord) -> bytes:
    """The line with the values of a note, without a newline. Steps that are not there are passed over."""
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
    """Finds the steps that a note names in a line; None for one that is not there."""
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
        if given.trainer is not None:
            fit = {**(_named(step.get("trainer")) or {}), **_fitting(given.trainer, step)}
            if fit:
                step["trainer"] = fit
    return steps


def _fitting(given: TrainerRecord, step: dict[str, Any]) -> dict[str, Any]:
    """A trainer's numbers that a step has tokens for, as they stand in a line: others would make it unreadable."""
    tokens = _named(step.get("tokens")) or {}
    prompt, end = (_value(tokens.get(name)) for name in ("prompt", "end"))
    sampled = 0 if end is None else end - (prompt or 0)
    arrays = ((name, getattr(given, name)) for name in given.__struct_fields__)
    return {
        name: msgspec.to_builtins(array) for name, array in arrays if array is not None and array.shape[0] <= sampled
    }


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
    return loads(value) if isinstance(value, (bytes, msgspec.Raw)) else value


def _as_fragments(value: Any, depth: int = 5) -> Any:
    """The value with bytes that are not decoded as parts that are written as they are.

    Args:
        depth: how deep such bytes can lie: line, steps, step, metadata, value.
    """
    if isinstance(value, msgspec.Raw):
        return orjson.Fragment(bytes(value))
    if depth and isinstance(value, dict):
        return {name: _as_fragments(item, depth - 1) for name, item in value.items()}
    if depth and isinstance(value, list):
        return [_as_fragments(item, depth - 1) for item in value]
    return value


class NotedLine(NamedTuple):
    """A line of a file, and what was noted of its trajectory."""

    path: str
    number: int
    """From 1."""
    data: bytes
    """Without its newline and its note."""
    note: NoteRecord | None = None


def missing_media(line: NotedLine) -> FormatError | None:
    """The error of a line whose media are not all in their folder, by name and size; their bytes are not read."""
    for name, size in references(line.data).items():
        place = folder_of(line.path) / name
        try:
            found = place.stat().st_size
        except OSError as error:
            return FormatError(f"{line.path}, line {line.number}: its media {place} cannot be read: {error.strerror}")
        if found != size:
            return FormatError(
                f"{line.path}, line {line.number}: expected {size} bytes of media in {place}, got {found}"
            )
    return None


class CarriedMedia:
    """The media folder of the file that is written."""

    def __init__(self, path: Path) -> None:
        self._folder = folder_of(path)
        self._is_new = not self._folder.exists()

    def carry(self, line: bytes, source: str) -> None:
        """Puts the media of a line of the file ``source`` into the folder."""
        for name in references(line):
            place = self._folder / name
            if not place.exists():
                self._folder.mkdir(parents=True, exist_ok=True)
                _link_or_copy(folder_of(source) / name, place)

    def folded(self, line: bytes, note: NoteRecord, source: str) -> bytes:
        """The line of the file ``source`` with a note; its media are put into the folder."""
        found, mark = fold(line, note), _mark_of(line)
        if mark is None or found.count(mark + b"(") == line.count(mark + b"("):
            self.carry(found, source)
            return found
        # A text of the note looks like a reference: the line gets another mark.
        inline = fold(without_mark(restore(line, folder_of(source))), note)
        return MediaFolder(self._folder).extract(inline)

    def remove(self) -> None:
        """Removes the folder, unless it was there before."""
        if self._is_new:
            shutil.rmtree(self._folder, ignore_errors=True)


def _link_or_copy(source: Path, target: Path) -> None:
    # Media never change, so that two folders can share them.
    try:
        os.link(source, target)
    except FileExistsError:
        return
    except OSError:  # Another file system, or one without links.
        with open(source, "rb") as file, replacing(target, mode=stat.S_IMODE(os.fstat(file.fileno()).st_mode)) as copy:
            shutil.copyfileobj(file, copy)


def copy_lines(target: Path, mode: int, copy: Callable[[Callable[[NotedLine], None]], object]) -> None:
    """Writes a file of copied lines with their media and notes: whole under its name, or not at all.

    The suffix of ``target`` chooses the compression.

    Args:
        copy: called once with the function that writes a line.

    Raises:
        FormatError: media of a line are missing.
        OSError: the file cannot be written.
    """
    compress, media = compressor(target), CarriedMedia(target)
    try:
        with replacing(target, bits=mode | 0o600) as file:

            def put(line: NotedLine) -> None:
                data = _placed(line, lambda: _carried(line, media)) + b"\n"
                file.write(data if compress is None else compress(data))

            copy(put)
    except BaseException:
        media.remove()
        raise


def self_contained(line: NotedLine) -> bytes:
    """The line as it can stand alone: its note folded in, its media in their places.

    Raises:
        FormatError: its media are missing.
    """
    return _placed(line, lambda: _inlined(line))


def _carried(line: NotedLine, media: CarriedMedia) -> bytes:
    missing = missing_media(line)
    if missing is not None:
        raise missing
    if line.note is not None:
        return media.folded(line.data, line.note, line.path)
    media.carry(line.data, line.path)
    return bytes(line.data)


def _inlined(line: NotedLine) -> bytes:
    data = bytes(line.data)
    if references(data):
        data = without_mark(restore(data, name_of_folder(line.path)))
    return data if line.note is None else fold(data, line.note)


def _placed(line: NotedLine, make: Callable[[], bytes]) -> bytes:
    """Calls ``make``; its errors say which line it is."""
    try:
        return at_any_depth(make)
    except MissingMedia as error:
        raise error.at(f"{line.path}, line {line.number}") from error
    except FileNotFoundError as error:
        raise FormatError(f"{line.path}, line {line.number}: its media are missing: {error}") from error
