"""Inline images, audio and files of a line, moved to a folder beside the file, and put back.

A reference is a text in the place of the base64 it stands for. It begins with a mark that the line names in its field
``media`` and that occurs nowhere else in the line, so that nothing a user or a model wrote can be taken for one.
Both directions work on the bytes of the line: whatever else it holds stays as it was, to the byte.
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
from uuid import uuid4

import msgspec

from rollout_trace.file.records import SCHEMA, Head

MediaMode: TypeAlias = Literal["inline", "folder"]

_LONGEST_INLINE = 1024
"""Characters of base64 that stay in the line."""
_BASE64 = rb"[A-Za-z0-9+/]{%d,}={0,2}" % (_LONGEST_INLINE - 2)
_TYPE = rb"[\w.+-]+/[\w.+-]+(?:;[\w.+-]+=[\w.+-]+)*"
# What follows must not look like more of the same data: an escaped slash, or base64 that is escaped for URLs.
_URL = re.compile(rb"data:(|%s);base64,(%s)(?![\w+/=%%-]|\\+/)" % (_TYPE, _BASE64))
_VALUE = re.compile(rb'"(%s)"' % _BASE64)
# Cheap: only a line in which one of these holds base64 is parsed to see what it is.
_KEYED = re.compile(rb'"(?:data|base64|file_data|b64_json|result)":"[A-Za-z0-9+/]{%d}' % (_LONGEST_INLINE - 2))
# The type comes last: its letters may be those of the other parts, but no bracket.
_REFERENCE = rb"%s\(sha256=([0-9a-f]{64});bytes=(\d{1,19});as=(url|base64)(?:;type=([^)\s\"]*))?\)"
_START = b'{"schema":"%s",' % SCHEMA.encode()

_head = msgspec.json.Decoder(Head)


class MissingMedia(ValueError):
    """A file that a line refers to is not in the media folder, or is another. Begins with the path in the line."""


def check_mode(mode: str) -> None:
    """Raises ValueError where ``mode`` is no way to keep media."""
    if mode not in ("inline", "folder"):
        raise ValueError(f'media is {mode!r}; it can be "inline" or "folder".')


def folder_of(path: str | os.PathLike[str]) -> Path:
    """Where the media of a file are."""
    return Path(f"{os.fspath(path)}.media")


class MediaFolder:
    """The media of one file, each under its sha256. Any number of threads and processes can write to it."""

    def __init__(self, path: Path, *, fsync: bool = False) -> None:
        self.path = path
        self._fsync = fsync

    def moved(self, line: bytes) -> bytes:
        """The line with references in the place of its media, which are in the folder when this returns.

        Raises:
            OSError: a file cannot be written.
        """
        is_keyed = _KEYED.search(line) is not None
        if not is_keyed and _URL.search(line) is None:
            return line
        mark = _unused_mark(line)
        found = _URL.sub(lambda match: self._url(match, mark), line)
        if is_keyed:
            types = dict(_values(_parsed(line)))
            found = _VALUE.sub(lambda match: self._value(match, mark, types), found)
        if found == line:
            return line
        return b'%s"media":{"mark":"%s"},%s' % (_START, mark, found[len(_START) :])

    def _url(self, match: re.Match[bytes], mark: bytes) -> bytes:
        return self._reference(match[2], mark, b"url;type=%s" % match[1]) or match[0]

    def _value(self, match: re.Match[bytes], mark: bytes, types: dict[bytes, bytes]) -> bytes:
        if match[1] not in types:
            return match[0]
        mime_type = types[match[1]]
        reference = self._reference(match[1], mark, b"base64;type=%s" % mime_type if mime_type else b"base64")
        return match[0] if reference is None else b'"%s"' % reference

    def _reference(self, text: bytes, mark: bytes, form: bytes) -> bytes | None:
        """The reference to what a text of base64 holds; None where it is short, or would not come back the same."""
        if len(text) <= _LONGEST_INLINE:
            return None
        try:
            data = base64.b64decode(text, validate=True)
        except binascii.Error:
            return None
        if base64.b64encode(data) != text:
            return None
        name = sha256(data).hexdigest()
        self._keep(name, data)
        return b"%s(sha256=%s;bytes=%d;as=%s)" % (mark, name.encode(), len(data), form)

    def _keep(self, name: str, data: bytes) -> None:
        place = self.path / name
        if _size(place) == len(data):
            return
        self.path.mkdir(parents=True, exist_ok=True)
        # Another process may write the same one: whoever renames last replaces it with its equal.
        temporary = self.path / f".{name}.{uuid4().hex}"
        try:
            with open(temporary, "xb") as file:
                file.write(data)
                if self._fsync:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(temporary, place)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def restored(line: bytes, folder: Path) -> bytes:
    """The line with its media in the place of the references.

    Raises:
        MissingMedia: a file is not in the folder, or does not hold what was written there.
    """
    mark = _mark_of(line)
    if mark is None:
        return line
    reference = re.compile(_REFERENCE % re.escape(mark))

    def data_of(match: re.Match[bytes]) -> bytes:
        text = base64.b64encode(_read(match, line, folder))
        # Another program may have escaped the slash, which JSON allows.
        mime_type = (match[4] or b"").replace(b"\\", b"")
        return b"data:%s;base64,%s" % (mime_type, text) if match[3] == b"url" else text

    return reference.sub(data_of, line)


def _read(match: re.Match[bytes], line: bytes, folder: Path) -> bytes:
    name = match[1].decode()
    place = folder / name
    try:
        data = place.read_bytes()
    except FileNotFoundError:
        problem = "no such file. Keep the folder beside the file, under its name and .media"
    except OSError as error:
        problem = f"a file that cannot be read ({error})"
    else:
        if sha256(data).hexdigest() == name:
            return data
        problem = f"{len(data)} other bytes"
    path = _path_of(match[0].replace(b"\\", b"").decode(), line)
    raise MissingMedia(
        f"{path}: expected {int(match[2])} bytes of media with sha256 {name} in {place}, got {problem}. "
        'To read without the data: read(..., media="keep").'
    )


def _size(place: Path) -> int | None:
    try:
        return place.stat().st_size
    except FileNotFoundError:
        return None


# Marks


def _unused_mark(line: bytes) -> bytes:
    """A mark that nothing in the line holds yet."""
    marks = (b"rollout-trace-media%s" % (b"" if number == 1 else b"%d" % number) for number in count(1))
    return next(mark for mark in marks if mark + b"(" not in line)


def _mark_of(line: bytes) -> bytes | None:
    """The mark of the references in a line; None where it has none, or is no line: decoding it will tell."""
    if b'"media"' not in line:
        return None
    try:
        head = _head.decode(line)
    except msgspec.ValidationError:
        return None
    except (msgspec.DecodeError, ValueError):
        try:  # Half a surrogate pair, which the json module takes.
            head = msgspec.convert(json.loads(line), Head)
        except (ValueError, msgspec.ValidationError):
            return None
    return None if head.media is None else head.media.mark.encode()


# Which texts are media


def _parsed(line: bytes) -> Any:
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return json.loads(line)


def _values(line: Any) -> Iterator[tuple[bytes, bytes]]:
    """Texts of base64 that are media by what stands beside them, each with its MIME type, or nothing."""
    pending: list[tuple[str, Any]] = [("", line)]
    while pending:
        name, value = pending.pop()
        if isinstance(value, dict):
            pending += value.items()
            for key in _keys(name, value):
                text = value.get(key)
                if isinstance(text, str) and len(text) > _LONGEST_INLINE and text.isascii():
                    yield text.encode(), _mime_type(name, value)
        elif isinstance(value, list):
            pending += ((name, item) for item in value)


_TYPE_NAMES = ("media_type", "mime_type", "mimeType")


def _keys(name: str, value: dict[str, Any]) -> tuple[str, ...]:
    """The keys of an object, found under ``name``, whose texts are media."""
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
    """Where in a line a reference stands."""
    pending: list[tuple[str, Any]] = [("$", json.loads(line))]
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
