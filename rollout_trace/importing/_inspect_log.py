"""The samples of an inspect log, one at a time: members of a zip, or items of one JSON document."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from rollout_trace.errors import FormatError
from rollout_trace.file.compression import import_zstandard
from rollout_trace.file.lines import LONGEST_LINE
from rollout_trace.importing.fields import Fields, Place, kind_of
from rollout_trace.importing.inputs import decoded, document

if TYPE_CHECKING:
    from rollout_trace.importing.imported import Job
    from rollout_trace.importing.inputs import Input

_ZSTD = 93
_LOCAL_HEADER = 30
_BAD_ZIP = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError, ValueError,
            struct.error)  # fmt: skip
"""What ``zipfile`` raises for archives that are damaged, encrypted, or of an unknown kind."""


@dataclass
class Log:
    """What a log has beside its samples."""

    name: str
    task: str | None = None
    run_id: str | None = None
    model: str | None = None
    solver: str | None = None
    environment: dict[str, Any] | None = None


def logs_of(source: Input, job: Job) -> Iterator[tuple[Log, Fields]]:
    """Each sample of a file, with its log."""
    with source.opened() as file:
        begin = file.read(4)
        file.seek(0)
        if begin[:2] == b"PK":
            yield from _from_zip(source, file, job)
            return
    whole = document(source, job.problems)
    if whole is None:
        return
    if whole.object("eval") is None:
        job.problems.add(whole.place.error("$.eval", "a log of inspect", "none"))
        return
    log = _log(whole, source)
    if whole.get("samples") is None:
        job.report.drop("logs without samples")
    for sample in whole.objects("samples"):
        yield log, sample


def _log(header: Fields | None, source: Input) -> Log:
    log = Log(source.stem)
    spec = None if header is None else header.object("eval")
    if spec is None:
        return log
    log.task, log.run_id, log.model = spec.text("task"), spec.text("run_id"), spec.text("model")
    log.solver = spec.text("solver")
    facts = {"inspect_ai": spec.mapping("packages").get("inspect_ai"), "git": spec.get("revision"), "model": log.model}
    log.environment = {name: value for name, value in facts.items() if value is not None} or None
    return log


def _from_zip(source: Input, file: BinaryIO, job: Job) -> Iterator[tuple[Log, Fields]]:
    place = Place(source.path, None, job.problems)
    try:
        archive = zipfile.ZipFile(file)
    except _BAD_ZIP as error:
        job.problems.add(FormatError(f"{place}: expected a whole .eval file (a zip), got a damaged one: {error}."))
        return
    with archive:
        names = {info.filename: info for info in archive.infolist()}
        head = names.get("header.json") or names.get("_journal/start.json")
        if "header.json" not in names:
            job.report.note("logs of runs that did not end, without their header")
        log = _log(None if head is None else _member(archive, head, file, source, job), source)
        for info in archive.infolist():
            if info.filename.startswith("samples/") and info.filename.endswith(".json"):
                sample = _member(archive, info, file, source, job)
                if sample is not None:
                    yield log, sample


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, file: BinaryIO, source: Input, job: Job) -> Fields | None:
    place = Place(f"{source.path}, {info.filename}", None, job.problems)
    try:
        value = decoded(_bytes(archive, info, file, source.path), place)
    except FormatError as error:
        job.problems.add(error)
        return None
    except ImportError:
        raise
    except _BAD_ZIP as error:
        job.problems.add(FormatError(f"{place}: expected a member of the zip that can be read, got: {error}."))
        return None
    if isinstance(value, dict):
        return Fields(value, place)
    job.problems.add(place.error("$", "an object", kind_of(value)))
    return None


def _bytes(archive: zipfile.ZipFile, info: zipfile.ZipInfo, file: BinaryIO, path: str) -> bytes:
    if info.file_size > LONGEST_LINE:
        raise ValueError(f"it has more than {LONGEST_LINE} bytes")
    if info.compress_type != _ZSTD:
        with archive.open(info) as member:
            # What the zip says of its size need not be true.
            found = member.read(LONGEST_LINE + 1)
        if len(found) > LONGEST_LINE:
            raise ValueError(f"it has more than {LONGEST_LINE} bytes")
        return found
    # `zipfile` opens these from Python 3.14 on.
    zstandard = import_zstandard(path)
    file.seek(info.header_offset)
    header = file.read(_LOCAL_HEADER)
    name_length, extra_length = struct.unpack("<HH", header[26:30])
    file.seek(info.header_offset + _LOCAL_HEADER + name_length + extra_length)
    packed = file.read(info.compress_size)
    try:
        with zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True) as reader:
            content: bytes = reader.read(LONGEST_LINE + 1)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
    if len(content) > LONGEST_LINE or (info.file_size and len(content) != info.file_size):
        raise ValueError(f"it has other than the {info.file_size} bytes that the zip says")
    return content
