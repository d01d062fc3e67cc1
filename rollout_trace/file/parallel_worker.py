"""The program of a process that reads parts of files for another one: parts come by stdin, batches go to stdout."""

from __future__ import annotations

import io
import os
import queue
import sys
import threading
from collections.abc import Iterator
from typing import IO, BinaryIO

import msgspec

from rollout_trace.file.addresses import open_binary
from rollout_trace.file.decode import parse
from rollout_trace.file.lines import Damaged, NumberedLines
from rollout_trace.file.media import parse_restored
from rollout_trace.file.packed import Batch, PackedLine, packed_line, to_bytes
from rollout_trace.file.parts import Part

BATCH_BYTES = 256 * 1024
"""About the bytes of JSON in a batch: what fits a cache of the processor is read twice as fast."""
_AHEAD = 32
"""Batches that wait to be sent, at most."""


_BEGIN = b"\0rollout_trace reads\0"
"""Comes before the first message: what is imported at the start of an interpreter may have printed."""


class Wanted(msgspec.Struct, array_like=True):
    """What a process is asked to read."""

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
