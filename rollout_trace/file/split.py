"""Writes the parts of a ``split``: lines byte for byte, with their media and notes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from rollout_trace.errors import FormatError
from rollout_trace.file.addresses import is_file
from rollout_trace.file.compression import compressor
from rollout_trace.file.lines import SplitLine, lines
from rollout_trace.file.merge_media import CarriedMedia
from rollout_trace.file.notes import is_notes_file, note_lines_by_id, notes_path
from rollout_trace.file.shards import lines_among
from rollout_trace.file.split_plan import Part

_OPEN = 100
"""Files that are open at once."""


def check_folder(folder: Path, names: Iterable[str], *, overwrite: bool) -> None:
    """Checks that files can be written to a folder, and are then the only ones of trajectories in it.

    Raises:
        FileExistsError: there are others.
        NotADirectoryError: it is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file: give the path of a folder.")
    there = set(lines_among(os.listdir(folder))) if folder.exists() else set()
    ours = {*names, *map(notes_path, names)}
    if there and not overwrite:
        raise FileExistsError(
            f"{folder} has files of trajectories already: give a new folder, or overwrite=True to replace them."
        )
    if others := sorted(there - ours):
        raise FileExistsError(
            f"{folder} has other files of trajectories, such as {others[0]}: they would be taken for parts. "
            "Give a new folder, or move them away."
        )


def write_parts(folder: Path, suffix: str, files: Sequence[str], parts: Sequence[Part], mode: int) -> list[str]:
    """Writes parts to a folder and returns the paths of their files. They appear when all are written.

    Args:
        folder: where they are written.
        suffix: of their names, which chooses the compression.
        files: that the entries of the parts are in.
        parts: without empty ones.
        mode: permissions of the files.

    Raises:
        FormatError: a file has changed since the plan was made, or media are missing.
        OSError: a file cannot be read or written.
    """
    existed = folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f".split-{uuid4().hex}"
    aside.mkdir()
    try:
        names = [f"{part.name}{suffix}" for part in parts]
        with _Outputs([aside / name for name in names], mode) as outputs:
            _copy_lines(files, parts, outputs)
        _copy_notes(files, parts, [aside / name for name in names])
        for name in names:
            # Notes of an earlier split that was overwritten would be applied to this one.
            Path(notes_path(folder / name)).unlink(missing_ok=True)
        for one in sorted(os.listdir(aside)):
            _move(aside / one, folder / one)
    except BaseException:
        shutil.rmtree(folder if not existed else aside, ignore_errors=True)
        raise
    aside.rmdir()
    return [str(folder / name) for name in names]


def _move(source: Path, target: Path) -> None:
    if source.is_dir() and target.exists():
        for one in source.iterdir():
            os.replace(one, target / one.name)
        source.rmdir()
    else:
        os.replace(source, target)


def _copy_lines(files: Sequence[str], parts: Sequence[Part], outputs: _Outputs) -> None:
    places: list[dict[int, tuple[int, int]]] = [{} for _ in files]
    for at, part in enumerate(parts):
        for entry in part.entries:
            places[entry.file][entry.number] = at, entry.size
    for path, wanted in zip(files, places, strict=True):
        copied = 0
        for number, line in lines(path):
            if number not in wanted or not isinstance(line, bytes):
                continue
            at, size = wanted[number]
            if len(line) > size and isinstance(line, SplitLine):
                line = bytes(line[line.seam :])
            if len(line) != size:
                break
            outputs.write(at, line, path)
            copied += 1
        if copied != len(wanted):
            raise FormatError(f"{path} was changed while it was read: nothing was written. Split again.")


class _Outputs:
    """The files that are written. Not all are open at once."""

    def __init__(self, paths: Sequence[Path], mode: int) -> None:
        self._paths = paths
        self._mode = mode
        self._compress: Callable[[bytes], bytes] | None = compressor(paths[0]) if paths else None
        self._media: dict[int, CarriedMedia] = {}
        self._files: dict[int, BinaryIO] = {}

    def __enter__(self) -> _Outputs:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def write(self, at: int, line: bytes, source: str) -> None:
        """Writes a line of the file ``source``."""
        path = self._paths[at]
        if at not in self._media:
            self._media[at] = CarriedMedia(path)
        try:
            self._media[at].carry(line, source)
        except FileNotFoundError as error:
            raise FormatError(f"{source}: media of a line are missing: {error.filename}.") from error
        data = bytes(line) + b"\n"
        self._file(at).write(data if self._compress is None else self._compress(data))

    def _file(self, at: int) -> BinaryIO:
        file = self._files.pop(at, None)
        if file is None:
            if len(self._files) >= _OPEN:
                self._files.pop(next(iter(self._files))).close()
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
            file = open(os.open(self._paths[at], flags, self._mode | 0o600), "ab")  # noqa: SIM115 - kept open
        # Last, as the one that was used last.
        self._files[at] = file
        return file


def _copy_notes(files: Sequence[str], parts: Sequence[Part], paths: Sequence[Path]) -> None:
    """Writes the notes of each part beside it, line by line as they are."""
    beside = dict.fromkeys(map(notes_path, files))
    for notes in beside:
        if not (is_file(notes) and is_notes_file(notes)):
            continue
        # An id can be in several parts, where lines have it twice.
        homes: dict[str, set[int]] = {}
        sources = {at for at, path in enumerate(files) if notes_path(path) == notes}
        for at, part in enumerate(parts):
            for entry in part.entries:
                if entry.file in sources:
                    homes.setdefault(entry.id, set()).add(at)
        for one, line in note_lines_by_id(notes):
            for at in sorted(homes.get(one, ())):
                with open(notes_path(paths[at]), "ab") as file:
                    file.write(bytes(line) + b"\n")
