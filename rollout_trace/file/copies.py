"""Lines of files, copied to another file or to a stream: byte for byte where nothing was noted of their trajectory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Protocol

from rollout_trace.errors import FormatError
from rollout_trace.file.compression import compressor
from rollout_trace.file.decode import on_a_fresh_stack
from rollout_trace.file.fold import fold, without_mark
from rollout_trace.file.media import MissingMedia, name_of_folder, references, restore
from rollout_trace.file.merge import write_whole
from rollout_trace.file.merge_media import CarriedMedia, Line, missing_media
from rollout_trace.file.records import NoteRecord


class NotedLine(Line, Protocol):
    """A line, and what was noted of its trajectory."""

    @property
    def note(self) -> NoteRecord | None:
        """The note."""


def copy_lines(target: Path, mode: int, copy: Callable[[Callable[[NotedLine], None]], object]) -> None:
    """Writes a file of copied lines, with their media, notes folded in. It appears whole under its name, or not at all.

    Args:
        target: the file; its suffix chooses the compression.
        mode: its permissions.
        copy: called once with the function that writes a line.

    Raises:
        FormatError: media of a line are missing.
        OSError: the file cannot be written.
    """
    compress, media = compressor(target), CarriedMedia(target)

    def write(file: BinaryIO) -> None:
        def put(line: NotedLine) -> None:
            data = _placed(line, lambda: _carried(line, media)) + b"\n"
            file.write(data if compress is None else compress(data))

        copy(put)

    try:
        write_whole(target, mode, write)
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
    """What ``make`` gives; its errors say which line it is."""
    try:
        try:
            return make()
        except RecursionError:
            return on_a_fresh_stack(make)
    except MissingMedia as error:
        raise FormatError(f"{line.path}, line {line.number}, {error}") from error
    except FileNotFoundError as error:
        raise FormatError(f"{line.path}, line {line.number}: its media are missing: {error}") from error
