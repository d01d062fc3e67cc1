"""The files of an import: which ones a path names, their lines, and files that are one document."""

from __future__ import annotations

import glob
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, BinaryIO, TypeAlias

import msgspec

from rollout_trace.data.user_values import brief
from rollout_trace.errors import FormatError
from rollout_trace.file.addresses import (
    has_magic,
    is_address,
    join,
    matching,
    names_in,
    open_binary,
    refuse_special_file,
    to_local,
)
from rollout_trace.file.compression import members_of
from rollout_trace.file.line_format import BadLine, at_any_depth
from rollout_trace.file.lines import LONGEST_LINE, Damaged, NumberedLines
from rollout_trace.importing.fields import Fields, Place, Problems, kind_of

PathLike: TypeAlias = "str | os.PathLike[str]"
Given: TypeAlias = "PathLike | Iterable[PathLike | str | bytes] | BinaryIO"
"""Input of an importer: a path, a folder, a pattern, an address, an open file, or an iterable of paths."""

_CHUNK = 1 << 20
_SPACE = re.compile(r"\s*")
_OBJECT = re.compile(r'(?<!\\)\{"')
_NO_UTF_8 = re.compile("[\udc80-\udcff]")
_MOST_TRIED = 100
"""Places in a damaged line at which a whole object is looked for, at most."""
_SCAN = json.JSONDecoder().raw_decode
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Input:
    """One file of an import; with ``file`` one that is open already, and is not closed."""

    def __init__(self, path: str, file: BinaryIO | None = None) -> None:
        self.path = path
        self._file = file

    @property
    def is_open_file(self) -> bool:
        """Whether it was given open: nothing beside it can be looked for."""
        return self._file is not None

    @property
    def stem(self) -> str:
        """Name of the file without its folder and suffixes."""
        name = self.path.replace("\\", "/").rpartition("/")[2]
        for suffix in (".gz", ".zst", ".jsonl", ".json", ".eval"):
            name = name.removesuffix(suffix)
        return name

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """The file, at its begin."""
        if self._file is not None:
            yield self._file
            return
        with open_binary(self.path) as file:
            yield file

    def begin(self, size: int) -> bytes:
        """The first bytes of a file that was given by its path."""
        with self.opened() as file:
            return file.read(size)


def inputs_of(given: Given, suffixes: tuple[str, ...]) -> list[Input]:
    """The files that an argument of an importer names, in the order of their names.

    Folders are searched with those inside them for names that end with ``suffixes``, hidden files left out. Raises
    TypeError for anything else, FileNotFoundError without a file, and OSError for a pipe, a socket or a device.
    """
    if hasattr(given, "read"):
        return [_open_input(given)]
    if isinstance(given, (str, os.PathLike)):
        return [Input(path) for path in _expand(to_local(given), suffixes)]
    if isinstance(given, (bytes, bytearray)) or not isinstance(given, Iterable):
        raise TypeError(
            f"expected the path of a file or folder, a pattern, a list of these, or an open file; got {brief(given)}."
        )
    found = [one for item in given for one in inputs_of(item, suffixes)]  # type: ignore[arg-type]
    if not found:
        raise FileNotFoundError("the list of files to import is empty: name at least one.")
    return found


def _open_input(file: Any) -> Input:
    name = getattr(file, "name", None)
    shown = name if isinstance(name, str) else "the open file"
    if isinstance(file, io.TextIOBase):
        # Whole: a text file gives no bytes, and its encoding is not this module's to choose.
        return Input(shown, io.BytesIO(file.read().encode("utf-8", "surrogatepass")))
    if not hasattr(file, "seek") or not file.seekable():
        return Input(shown, io.BytesIO(file.read()))
    return Input(shown, file)


def _expand(path: str, suffixes: tuple[str, ...]) -> list[str]:
    if is_address(path):
        names = None if has_magic(path) else names_in(path)
        found = matching(path) if has_magic(path) else [path] if names is None else [join(path, one) for one in names]
        found = found if names is None else [one for one in found if one.endswith(suffixes)]
    elif os.path.isdir(path):
        found = [one for one in _walk(path) if one.endswith(suffixes)]
    elif os.path.exists(path):
        refuse_special_file(path)
        return [path]
    elif has_magic(path):
        found = [file for file in sorted(glob.glob(path, recursive=True)) if not os.path.isdir(file)]
    else:
        raise FileNotFoundError(f"there is no file {path}.")
    if not found:
        raise FileNotFoundError(f"nothing to import in {path}: no file has a name that ends with {suffixes}.")
    return found


def _walk(folder: str) -> Iterator[str]:
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(one for one in folders if not one.startswith("."))
        for name in sorted(files):
            path = os.path.join(here, name)
            if not name.startswith(".") and os.path.isfile(path):
                yield path


def records(source: Input, problems: Problems, on_cut: Callable[[], object] | None = None) -> Iterator[Fields]:
    """The objects of a file of JSON lines, with their places. Lines that cannot be read are reported.

    ``on_cut`` is called in place of an error where the last line lacks its end: its writer is still at work.
    """
    with source.opened() as file:
        numbered = NumberedLines(file, source.path)
        held: tuple[int, bytes | Damaged] | None = None
        for number, line in numbered:
            if held is not None:
                yield from _record(source, held[0], held[1], problems)
            held = number, line
        if held is not None:
            ends_whole = numbered.ends_whole or on_cut is None
            yield from _record(source, held[0], held[1], problems, None if ends_whole else on_cut)


def _record(
    source: Input,
    number: int,
    line: bytes | Damaged,
    problems: Problems,
    on_cut: Callable[[], object] | None = None,
) -> Iterator[Fields]:
    place = Place(source.path, number, problems)
    if isinstance(line, Damaged):
        problems.add(FormatError(f"{place}: {line}."))
        return
    try:
        value = decoded(line, place)
    except FormatError as error:
        found, is_whole = _torn(line)
        if not is_whole:
            problems.add(error) if on_cut is None else on_cut()
        yield from (Fields(one, place) for one in found)
        return
    if isinstance(value, dict):
        yield Fields(value, place)
    else:
        problems.add(place.error("$", "an object", kind_of(value)))


def _torn(line: bytes) -> tuple[list[dict[str, Any]], bool]:
    """The whole objects of a line that a killed writer, or several, left; and whether it holds nothing else."""
    text = line.decode("utf-8", "surrogateescape")
    first, end = _objects(text, 0)
    if not text[end:].strip():
        return first, True
    # Objects inside one that was cut are no records: what is whole behind it goes to the end of the line.
    begins = [one.start() for one in _OBJECT.finditer(text, end + 1)][:_MOST_TRIED]
    rests = (_objects(text, begin) for begin in begins)
    return first + next((found for found, at in rests if found and not text[at:].strip()), []), False


def _objects(text: str, at: int) -> tuple[list[dict[str, Any]], int]:
    """The objects that stand one behind the other from a place, and the place behind them."""
    found: list[dict[str, Any]] = []
    while (begin := _SPACE.match(text, at)) is not None:
        try:
            value, end = _SCAN(text, begin.end())
        except (ValueError, RecursionError):
            break
        if not isinstance(value, dict) or _NO_UTF_8.search(text, at, end):
            break
        at = end
        found.append(value)
    return found, at


def document(source: Input, problems: Problems) -> Fields | None:
    """The one JSON object that a file holds, plain or compressed; None where it cannot be read, which is reported."""
    return one_object(lambda: whole(source), Place(source.path, None, problems))


def one_object(data: Callable[[], bytes], place: Place) -> Fields | None:
    """The JSON object that bytes hold; None where they cannot be read, or are none, which is reported."""
    return next(_objects_in(data, place), None)


def _objects_in(data: Callable[[], bytes], place: Place, *, lists: bool = False) -> Iterator[Fields]:
    """The JSON object that bytes hold; with ``lists``, also the objects of a list."""
    try:
        value = decoded(data(), place)
    except FormatError as error:
        place.problems.add(error)
        return
    if isinstance(value, dict):
        yield Fields(value, place)
    elif lists and isinstance(value, list):
        yield from Fields({"": value}, place, "$").objects("")
    else:
        expected = "an object, or a list of objects" if lists else "an object"
        place.problems.add(place.error("$", expected, kind_of(value)))


def documents(source: Input, problems: Problems) -> Iterator[Fields]:
    """The objects of a file that is one JSON object, a list of objects, or lines of objects."""
    if is_one_document(source):
        yield from _objects_in(lambda: whole(source), Place(source.path, None, problems), lists=True)
    else:
        yield from records(source, problems)


def is_one_document(source: Input) -> bool:
    """Whether a file is not JSON by lines: its name says so, or its first line is no whole value."""
    name = source.path.removesuffix(".gz").removesuffix(".zst")
    if name.endswith((".jsonl", ".ndjson")):
        return False
    with source.opened() as file:
        first = next((line for _, line in NumberedLines(file, source.path)), b"")
        file.seek(0)
    if isinstance(first, Damaged) or first[:1] != b"{":
        return True
    try:
        json.loads(first)
    except (ValueError, RecursionError):
        return True
    return False


def whole(source: Input) -> bytes:
    """The contents of a file, decompressed. Raises FormatError: over 1 GiB, or damaged; ImportError: no zstandard."""
    with source.opened() as file:
        members = members_of(file, source.path)
        found = bytearray()
        for part in iter(partial(file.read, _CHUNK), b"") if members is None else members.parts():
            if isinstance(part, Damaged):
                raise FormatError(
                    f"{source.path}: expected compressed data, got bytes that are damaged: {part.__cause__}."
                ) from part.__cause__
            found += part or b""
            if len(found) > LONGEST_LINE:
                raise FormatError(f"{source.path}: expected a document of at most {LONGEST_LINE} bytes, got more.")
    return bytes(found).removeprefix(_BYTE_ORDER_MARK)


def decoded(data: bytes, place: Place) -> Any:
    """A JSON value, also with NaN and lone surrogates, as Python's own writer gives them. Raises FormatError."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return _decoded_plainly(data, place)


def _decoded_plainly(data: bytes, place: Place) -> Any:
    try:
        return at_any_depth(json.loads, data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise FormatError(f"{place}: expected UTF-8, got other bytes: {error.reason} at {error.start}.") from error
    except BadLine as error:
        raise FormatError(f"{place}: {error}.") from error
    except ValueError as error:
        what = error.msg if isinstance(error, json.JSONDecodeError) else "a number with too many digits"
        where = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise FormatError(f"{place}: expected JSON, got something else: {what}{where}.") from error
