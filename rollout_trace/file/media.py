"""Moves inline images, audio and files of a line to a folder beside the file, and restores them.

A reference is a text that replaces base64. It begins with a mark that the line's field ``media`` names and that occurs
nowhere else in the line, so that no text of a user or a model can be mistaken for a reference. Both directions replace
bytes in the line without re-encoding it: everything else stays the same to the byte.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Iterator
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from rollout_trace.file.addresses import is_address, join, make_folder, open_binary, refuse_special_file, replacing
from rollout_trace.file.line_format import BadLine
from rollout_trace.file.plain import loads
from rollout_trace.file.records import LINE_START, Head

MediaMode: TypeAlias = Literal["inline", "folder"]

_LONGEST_INLINE = 1024
"""Characters of base64 that stay in the line."""
_BASE64 = rb"[A-Za-z0-9+/]{%d,}={0,2}" % (_LONGEST_INLINE - 2)
_TYPE = rb"[\w.+-]+/[\w.+-]+(?:;[\w.+-]+=[\w.+-]+)*"
# What follows must not be more of the same data: an escaped slash, or base64 escaped for URLs.
_URL = re.compile(rb"data:(|%s);base64,(%s)(?![\w+/=%%-]|\\+/)" % (_TYPE, _BASE64))
_VALUE = re.compile(rb'"(%s)"' % _BASE64)
# A cheap test before parsing: only a line with base64 under one of these keys is parsed to identify media.
_KEYED = re.compile(rb'"(?:data|base64|file_data|b64_json|result)":"[A-Za-z0-9+/]{%d}' % (_LONGEST_INLINE - 2))
# The type comes last, because it may hold the separators of the other parts; it cannot hold a bracket.
_REFERENCE = rb"%s\(sha256=([0-9a-f]{64});bytes=(\d{1,19});as=(url|base64)(?:;type=([^)\s\"]*))?\)"

_head = msgspec.json.Decoder(Head)


class _Exchanges(msgspec.Struct):
    exchanges: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


_exchanges = msgspec.json.Decoder(_Exchanges)


class MissingMedia(BadLine):
    """A media file is missing or has other bytes. The message begins with the path of the reference in the record."""


def folder_of(path: str | os.PathLike[str]) -> Path:
    """Path of the folder with the media of a file."""
    return Path(name_of_folder(path))


def name_of_folder(path: str | os.PathLike[str]) -> str:
    """The same as text, which an address stays an address in."""
    return f"{os.fspath(path)}.media"


class MediaFolder:
    """The media folder of one file; its files are named by sha256. Safe for any number of threads and processes."""

    def __init__(self, path: Path, *, fsync: bool = False, mode: int | None = None) -> None:
        self.path = path
        self._fsync = fsync
        self._mode = mode

    def extract(self, line: bytes) -> bytes:
        """Writes the media of a line to the folder and returns the line with references in their place.

        The table ``exchanges`` stays as it is: its bytes are replayed, and counted by the line.

        Raises:
            OSError: a file cannot be written.
        """
        is_keyed = _KEYED.search(line) is not None
        if not is_keyed and _URL.search(line) is None:
            return line
        marks = (b"rollout-trace-media%s" % (b"" if number == 1 else b"%d" % number) for number in count(1))
        # One that does not occur in the line.
        mark = next(mark for mark in marks if mark + b"(" not in line)
        before, table, after = _around_exchanges(line)
        types = dict(_media_texts(loads(b"%s[]%s" % (before, after) if table else line))) if is_keyed else {}
        found = table.join([self._moved(part, mark, types) for part in (before, after)])
        if found == line:
            return line
        return b'%s"media":{"mark":"%s"},%s' % (LINE_START, mark, found[len(LINE_START) :])

    def _moved(self, part: bytes, mark: bytes, types: dict[bytes, bytes]) -> bytes:
        found = _URL.sub(lambda match: self._url(match, mark), part)
        return _VALUE.sub(lambda match: self._value(match, mark, types), found) if types else found

    def _url(self, match: re.Match[bytes], mark: bytes) -> bytes:
        return self._reference(match[2], mark, b"url;type=%s" % match[1]) or match[0]

    def _value(self, match: re.Match[bytes], mark: bytes, types: dict[bytes, bytes]) -> bytes:
        if match[1] not in types:
            return match[0]
        mime_type = types[match[1]]
        reference = self._reference(match[1], mark, b"base64;type=%s" % mime_type if mime_type else b"base64")
        return match[0] if reference is None else b'"%s"' % reference

    def _reference(self, text: bytes, mark: bytes, form: bytes) -> bytes | None:
        """Stores decoded base64 and returns its reference; None where it is short or would not be restored exactly."""
        if len(text) <= _LONGEST_INLINE:
            return None
        try:
            data = base64.b64decode(text, validate=True)
        except binascii.Error:
            return None
        # Several texts can decode to the same bytes: only the canonical one is restored exactly.
        if base64.b64encode(data) != text:
            return None
        name = sha256(data).hexdigest()
        self._store(name, data)
        return b"%s(sha256=%s;bytes=%d;as=%s)" % (mark, name.encode(), len(data), form)

    def _store(self, name: str, data: bytes) -> None:
        place = self.path / name
        # A file cut short by a crash has the right name but another size, and is written again.
        if _size(place) == len(data):
            return
        make_folder(self.path, self._mode)
        # Readers never see a part, and processes that write the same data do not collide.
        with replacing(place, mode=self._mode, fsync=self._fsync) as file:
            file.write(data)


def restore(line: bytes, folder: str | os.PathLike[str]) -> bytes:
    """The line with references replaced by their media.

    Raises:
        MissingMedia: a file is missing, cannot be read, or has other bytes than its name.
    """
    mark = _mark_of(line)
    if mark is None:
        return line
    reference = re.compile(_REFERENCE % re.escape(mark))

    def data_of(match: re.Match[bytes]) -> bytes:
        text = base64.b64encode(_read(match, line, folder))
        # Another program may have rewritten the line with escaped slashes, which JSON allows.
        mime_type = (match[4] or b"").replace(b"\\", b"")
        return b"data:%s;base64,%s" % (mime_type, text) if match[3] == b"url" else text

    return reference.sub(data_of, line)


def references(line: bytes) -> dict[str, int]:
    """Names (sha256) and lengths in bytes of the media that a line refers to."""
    mark = _mark_of(line)
    found = () if mark is None else re.finditer(_REFERENCE % re.escape(mark), line)
    return {match[1].decode(): int(match[2]) for match in found}


def media_problems(line: bytes, folder: str | os.PathLike[str]) -> Iterator[MissingMedia]:
    """Yields what ``restore`` would raise, for each of the media of a line."""
    mark = _mark_of(line)
    seen: set[bytes] = set()
    for match in () if mark is None else re.finditer(_REFERENCE % re.escape(mark), line):
        if match[1] not in seen:
            seen.add(match[1])
            try:
                _read(match, line, folder)
            except MissingMedia as error:
                yield error


def _read(match: re.Match[bytes], line: bytes, folder: str | os.PathLike[str]) -> bytes:
    name = match[1].decode()
    place = join(os.fspath(folder), name)
    code = "media-missing"
    try:
        if not is_address(place):
            # To open a pipe that nobody writes takes for ever.
            refuse_special_file(place)
        with open_binary(place) as file:
            data = file.read()
    except FileNotFoundError:
        problem = "no such file. Keep the folder beside the file, under its name and .media"
    except OSError as error:
        problem = f"a file that cannot be read ({error})"
    else:
        if sha256(data).hexdigest() == name:
            return data
        problem, code = f"{len(data)} other bytes", "media-differs"
    path = _path_of(match[0].replace(b"\\", b"").decode(), line)
    raise MissingMedia(
        path,
        f"expected {int(match[2])} bytes of media with sha256 {name} in {place}, got {problem}. "
        'To read without the data: read(..., media="keep").',
        code,
    )


def _size(place: Path) -> int | None:
    try:
        return place.stat().st_size
    except FileNotFoundError:
        return None


# Marks


_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_TABLE = re.compile(rb'"exchanges"\s*:\s*')


def _around_exchanges(line: bytes) -> tuple[bytes, bytes, bytes]:
    """The line before its table of exchanges, the table, and what is behind it; both empty without one."""
    if b'"exchanges"' not in line:
        return line, b"", b""
    # In as many bytes: msgspec refuses half a surrogate pair.
    text = _SURROGATE.sub(rb"\\u0041", line)
    table = bytes(_exchanges.decode(text).exchanges)
    starts = [match.end() for match in _TABLE.finditer(text) if table and text.startswith(table, match.end())]
    if not starts:
        return line, b"", b""
    end = starts[-1] + len(table)
    return line[: starts[-1]], line[starts[-1] : end], line[end:]


def _mark_of(line: bytes) -> bytes | None:
    """The mark of the references in a line; None without one, also for a broken line, which fails when decoded."""
    if b'"media"' not in line:
        return None
    try:
        head = _head.decode(line)
    except msgspec.ValidationError:
        return None
    except (msgspec.DecodeError, ValueError):
        try:  # msgspec refuses lone surrogates, which the json module accepts.
            head = msgspec.convert(json.loads(line), Head)
        except (ValueError, msgspec.ValidationError):
            return None
    return None if head.media is None else head.media.mark.encode()


# Which texts are media


def _media_texts(line: Any) -> Iterator[tuple[bytes, bytes]]:
    """Base64 texts that are media by their key and the keys beside it, each with its MIME type or ``b""``."""
    pending: list[tuple[str, Any]] = [("", line)]
    while pending:
        name, value = pending.pop()
        if isinstance(value, dict):
            pending += value.items()
            for key in _media_keys(name, value):
                text = value.get(key)
                if isinstance(text, str) and len(text) > _LONGEST_INLINE and text.isascii():
                    yield text.encode(), _mime_type(name, value)
        elif isinstance(value, list):
            pending += ((name, item) for item in value)


_TYPE_NAMES = ("media_type", "mime_type", "mimeType")


def _media_keys(name: str, value: dict[str, Any]) -> tuple[str, ...]:
    """The keys whose texts are media, in an object that is the value of ``name``."""
    if name in ("input_audio", "audio") or any(isinstance(value.get(key), str) for key in _TYPE_NAMES):
        return "data", "base64", "file_data", "b64_json"
    return ("result",) if value.get("type") == "image_generation_call" else ("file_data", "b64_json")


def _mime_type(name: str, value: dict[str, Any]) -> bytes:
    named = next((value[key] for key in _TYPE_NAMES if isinstance(value.get(key), str)), None)
    if named is None and isinstance(value.get("format"), str):  # OpenAI's audio: "wav", "mp3".
        named = f"audio/{value['format']}"
    if named is None and isinstance(value.get("output_format"), str):  # OpenAI's generated images: "png".
        named = f"image/{value['output_format']}"
    mime_type = (named or "").encode("ascii", "replace")
    return mime_type if re.fullmatch(_TYPE, mime_type) else b""


def _path_of(reference: str, line: bytes) -> str:
    """Path of a reference in the line: ``$.steps[0]...``; that of the line where ``json`` refuses it."""
    try:
        pending: list[tuple[str, Any]] = [("$", json.loads(line))]
    except ValueError:
        # Bytes that are no UTF-8, or a number of more digits than it takes, in a field that this version does not know.
        return "$"
    while pending:
        path, value = pending.pop()
        if isinstance(value, str):
            if reference in value:
                return path
        elif isinstance(value, dict):
            pending += [(f"{path}.{key}", item) for key, item in reversed(value.items())]
        elif isinstance(value, list):
            pending += [(f"{path}[{at}]", item) for at, item in reversed([*enumerate(value)])]
    return "$"
