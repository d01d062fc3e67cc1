"""The media of the lines that ``merge`` copies from one file to another."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from rollout_trace.errors import FormatError
from rollout_trace.file.fold import fold, without_mark
from rollout_trace.file.media import MediaFolder, _mark_of, folder_of, references, restore
from rollout_trace.file.records import NoteRecord


class Line(Protocol):
    """A line of a file."""

    @property
    def path(self) -> str:
        """Of its file."""

    @property
    def number(self) -> int:
        """From 1."""

    @property
    def data(self) -> bytes:
        """Without its newline, and without what was noted of its trajectory."""


def missing_media(line: Line) -> FormatError | None:
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
    # Media never change, so that two folders can share them. Aside and renamed, as their writer does.
    temporary = target.parent / f".{target.name}.{uuid4().hex}"
    try:
        try:
            os.link(source, temporary)
        except OSError:  # Another file system, or one without links.
            shutil.copy(source, temporary)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
