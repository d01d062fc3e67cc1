"""The program of a process that reads parts of files for another one: parts come by stdin, batches go to stdout."""

from __future__ import annotations

import io
import mmap
import os
import queue
import sys
import threading
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import IO, TYPE_CHECKING, Any, BinaryIO, NamedTuple

import msgspec

from rollout_trace.file.addresses import is_address, open_binary
from rollout_trace.file.compression import GZIP_MAGIC, ZSTD_MAGIC
from rollout_trace.file.decode import Parsed, parse
from rollout_trace.file.lines import Damaged, NumberedLines
from rollout_trace.file.media import parse_restored
from rollout_trace.file.records import TrajectoryRecord

if TYPE_CHECKING:
    from rollout_trace.data.tokens import FloatArray, IntArray


# Parts of files that can be read on their own

PART_BYTES = 8 * 1024 * 1024
"""About the bytes of JSON in a part."""
_PACKED = 4
"""How often smaller a compressed file is, where its frames do not say."""
_DICTIONARY = (0, 1, 2, 4)
_CONTENT = (0, 2, 4, 8)


class Part(NamedTuple):
    """Bytes of a file."""

    path: str
    start: int = 0
    stop: int | None = None
    """None: to its end."""
    is_last: bool = True
    """Of its file."""


def parts_of(path: str) -> Iterator[Part]:
    """The parts of a file, in order: between lines of a plain one, between frames of one that zstd compresses.

    gzip has no such places that are found without unpacking it; such a file is one part, as is an address.
    """
    ends = [] if is_address(path) else _ends(path)
    start = 0
    for end in ends:
        yield Part(path, start, end, is_last=False)
        start = end
    yield Part(path, start)


def _ends(path: str) -> list[int]:
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            magic = file.read(4)
            if size < PART_BYTES // _PACKED or magic.startswith(GZIP_MAGIC):
                return []
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return list(_frame_ends(data) if magic == ZSTD_MAGIC else _line_ends(data))
    except (OSError, ValueError):
        # Whoever reads it says why it cannot be read.
        return []


def _line_ends(data: mmap.mmap) -> Iterator[int]:
    at = 0
    while 0 < (at := data.find(b"\n", at + PART_BYTES) + 1) < len(data):
        yield at


def _frame_ends(data: mmap.mmap) -> Iterator[int]:
    """Yields where frames end; nothing more from the first place on that is no whole frame."""
    at, held = 0, 0
    while at < len(data):
        try:
            end, content = _frame(data, at)
        except IndexError:
            return
        if end is None or end > len(data):
            return
        held += content or (end - at) * _PACKED
        at = end
        if held >= PART_BYTES and at < len(data):
            yield at
            held = 0


def _frame(data: Any, at: int) -> tuple[int | None, int]:
    """The end of a frame, None where there is none, and the bytes of its content, 0 where it does not say.

    As RFC 8878 has it, section 3.1.1.
    """
    if data[at : at + 4] != ZSTD_MAGIC:
        return None, 0
    flags = data[at + 4]
    is_single = flags >> 5 & 1
    place = at + 5 + (not is_single) + _DICTIONARY[flags & 3]
    width = _CONTENT[flags >> 6] or is_single
    content = int.from_bytes(data[place : place + width], "little") + (256 if width == 2 else 0)
    place += width
    while True:
        block = data[place] | data[place + 1] << 8 | data[place + 2] << 16
        # A block of one repeated byte has that byte alone.
        place += 3 + (1 if block >> 1 & 3 == 1 else block >> 3)
        if block & 1:
            return place + 4 * (flags >> 2 & 1), content


# Lines as bytes for another process of this machine and of this version


class PackedLine(msgspec.Struct, array_like=True, gc=False):
    """A line."""

    number: int
    """From 1, in its part of the file."""
    record: TrajectoryRecord
    ids: list[bytes]
    """int32, of each segment."""
    logprobs: list[bytes | None]
    """float32, of each step."""
    top_logprobs: list[bytes]


class Batch(msgspec.Struct, array_like=True, gc=False):
    """The contents of a message: lines that follow each other."""

    lines: list[PackedLine]
    newlines: int = 0
    """In what was read of the part so far."""
    is_end: bool = False
    """The part ends here."""
    has_problem: bool = False
    """What follows is to be read where the trajectories are wanted: a line is damaged, or cannot be packed."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Batch)


def packed_line(number: int, parsed: Parsed) -> PackedLine | None:
    """A line as it is sent; None where its values would not arrive as they are."""
    record = parsed.record
    # Times of other zones would arrive as the same moment in UTC.
    if not all(time is None or time.tzinfo is timezone.utc for time in _times(record)):
        return None
    for segment in record.segments:
        segment.ids = []
    for step in record.steps:
        if step.tokens is not None:
            step.tokens.logprobs = None
            # Bytes of JSON: as part of a message they would be taken for MessagePack.
            step.tokens.top_logprobs = msgspec.Raw(b"\xc0")
    ids = [one.tobytes() for one in parsed.ids]
    logprobs = [None if one is None else one.tobytes() for one in parsed.logprobs]
    return PackedLine(number, record, ids, logprobs, parsed.top_logprobs)


def _times(record: TrajectoryRecord) -> Iterable[datetime | None]:
    yield record.started_at
    yield record.ended_at
    for step in record.steps:
        yield step.started_at
        for attempt in step.attempts:
            yield attempt.started_at
    for run in record.tool_runs:
        yield run.started_at
    for exchange in record.exchanges:
        yield exchange.started_at


def to_bytes(batch: Batch) -> bytes:
    """A batch as bytes.

    Raises:
        Exception: a value has no place in MessagePack: a whole number of more than 64 bits, half a surrogate pair.
    """
    return _encoder.encode(batch)


def from_bytes(data: bytes) -> Batch:
    """The batch of bytes."""
    return _decoder.decode(data)


def parsed_line(line: PackedLine) -> Parsed:
    """A line that was sent."""
    import numpy as np

    ids: list[IntArray] = [np.frombuffer(one, np.int32) for one in line.ids]
    logprobs: list[FloatArray | None] = [
        None if one is None else np.frombuffer(one, np.float32) for one in line.logprobs
    ]
    found: Any = line.top_logprobs
    return Parsed(line.record, ids, logprobs, found)


BATCH_BYTES = 256 * 1024
"""About the bytes of JSON in a batch: what fits a cache of the processor is read twice as fast."""
_AHEAD = 32
"""Batches that wait to be sent, at most."""


_BEGIN = b"\0rollout_trace reads\0"
"""Comes before the first message: what is imported at the start of an interpreter may have printed."""


class Wanted(msgspec.Struct, array_like=True):
    """A part that a process is asked to read."""

    path: bytes
    """As the file system has it: a name may be no text."""
    start: int
    stop: int | None
    is_last: bool
    has_media: bool
    """Whether references to media are replaced by them."""


def main() -> None:
    """Reads what is asked for until stdin ends."""
    # What anything else prints must not get between the batches.
    results = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    results.write(_BEGIN)
    waiting: queue.Queue[bytes] = queue.Queue(_AHEAD)
    threading.Thread(target=_send, args=(waiting, results), daemon=True).start()
    decoder = msgspec.msgpack.Decoder(Wanted)
    while (data := read_message(sys.stdin.buffer)) is not None:
        for batch in batches(decoder.decode(data)):
            waiting.put(batch)
    os._exit(0)


def _send(waiting: queue.Queue[bytes], results: BinaryIO) -> None:
    try:
        while True:
            write_message(results, waiting.get())
    except OSError:
        # Nobody reads any more.
        os._exit(0)


def read_message(file: IO[bytes]) -> bytes | None:
    """The next message of a pipe; None at its end, also in the middle of one."""
    size = _read_exactly(file, 8)
    return None if size is None else _read_exactly(file, int.from_bytes(size, "little"))


def _read_exactly(file: IO[bytes], size: int) -> bytes | None:
    """So many bytes of a file without a buffer, which gives what there is; None where there are fewer."""
    data = file.read(size)
    if data is not None and len(data) == size:
        return data
    pieces = [data or b""]
    left = size - len(pieces[0])
    while left > 0:
        piece = file.read(left)
        if not piece:
            return None
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def skip_to_begin(file: IO[bytes]) -> None:
    """Reads what comes before the first message of a process."""
    seen = b""
    while not seen.endswith(_BEGIN) and (byte := file.read(1)):
        seen = (seen + byte)[-len(_BEGIN) :]


def write_message(file: IO[bytes], data: bytes) -> None:
    """Writes a message to a pipe. Raises OSError where nobody reads it."""
    for piece in (len(data).to_bytes(8, "little"), data):
        view = memoryview(piece)
        while view:
            view = view[file.write(view) :]


def batches(wanted: Wanted) -> Iterator[bytes]:
    """The batches of a part. The last one says so, or that the rest is to be read by whoever wants it."""
    counted: list[PackedLine] = []
    size = 0
    try:
        with _opened(wanted) as file:
            found = NumberedLines(file, os.fsdecode(wanted.path), is_start=wanted.start == 0)
            for number, line in found:
                if isinstance(line, Damaged) or (packed := _packed(wanted, number, line)) is None:
                    yield to_bytes(Batch(counted, has_problem=True))
                    return
                if size >= BATCH_BYTES:
                    yield to_bytes(Batch(counted))
                    counted, size = [], 0
                counted.append(packed)
                size += len(line)
            # A line may go on in the next part only where frames end inside of lines.
            has_problem = not (wanted.is_last or found.ends_whole)
            if has_problem:
                del counted[-1:]
            yield to_bytes(Batch(counted, newlines=found.newlines, is_end=not has_problem, has_problem=has_problem))
    except Exception:
        # It happens there again, and is reported.
        yield to_bytes(Batch([], has_problem=True))


def _opened(wanted: Wanted) -> BinaryIO:
    file = open_binary(os.fsdecode(wanted.path))
    if wanted.start == 0 and wanted.stop is None:
        return file
    with file:
        file.seek(wanted.start)
        return io.BytesIO(file.read() if wanted.stop is None else file.read(wanted.stop - wanted.start))


def _packed(wanted: Wanted, number: int, line: bytes) -> PackedLine | None:
    return packed_line(number, parse_restored(line, os.fsdecode(wanted.path)) if wanted.has_media else parse(line))


def wanted_of(part: Part, *, has_media: bool) -> Wanted:
    """A part as a process is asked for it."""
    return Wanted(os.fsencode(part.path), part.start, part.stop, part.is_last, has_media)
