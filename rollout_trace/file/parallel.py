"""Reads files in several processes: they unpack, parse and check lines, of which trajectories are made here, in order.

This module is also the program of such a process: parts of files come by stdin, batches of lines go to stdout.
"""

from __future__ import annotations

import json
import mmap
import os
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from functools import partial
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast
from weakref import finalize

import msgspec

from rollout_trace import guard
from rollout_trace._python import without_interrupts
from rollout_trace.file.addresses import is_address, open_binary
from rollout_trace.file.compression import GZIP_MAGIC, ZSTD_MAGIC
from rollout_trace.file.decode import parse, parse_restored, trajectory_of
from rollout_trace.file.line_format import at_any_depth
from rollout_trace.file.line_ids import LineIds
from rollout_trace.file.line_steps import Parsed, Steps
from rollout_trace.file.lines import Damaged, FilePart, NumberedLines
from rollout_trace.file.records import SCHEMA, TrajectoryRecord

if TYPE_CHECKING:
    from rollout_trace.data.model import Step
    from rollout_trace.data.tokens import FloatArray
    from rollout_trace.data.trajectory import Trajectory

PART_BYTES = 8 * 1024 * 1024
"""About the bytes of JSON in a part."""
PAYS_OFF_BYTES = 128 * 1024 * 1024
"""About the bytes of JSON that this process has read by the time that others have started."""
_BATCH_BYTES = 256 * 1024
"""The same of a batch: what fits a cache of the processor is read twice as fast."""
_PARTS_AHEAD, _BATCHES_AHEAD = 2, 32
"""Parts that a process is asked for before the first of them is wanted; batches that wait in it to be sent, at most."""
_PIPE_BYTES = 1 << 20
_PACKED = 4
"""How often smaller a compressed file is, where its frames do not say."""
_DICTIONARY, _CONTENT = (0, 1, 2, 4), (0, 2, 4, 8)
_BEGIN = b"\0rollout_trace reads\0"
"""Comes before the first message: what is imported at the start of an interpreter may have printed."""
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from rollout_trace.file.parallel import main; main()"
)


# Where the trajectories are wanted


def pays_off(paths: Iterable[str]) -> bool:
    """Tells whether files are so large that several processes read them sooner. Of addresses nothing is known."""
    total = 0
    for path in paths:
        try:
            total += PAYS_OFF_BYTES if is_address(path) else os.path.getsize(path) * _times_packed(path)
        except OSError:
            # Whoever reads it says why it cannot be read.
            pass
        if total >= PAYS_OFF_BYTES:
            return True
    return False


def _times_packed(path: str) -> int:
    return _PACKED if path.endswith((".gz", ".zst")) else 1


class Workers:
    """Processes that read the parts of files in turn, a few parts ahead of what is wanted.

    Args:
        paths: the files, in the order in which they will be wanted.
    """

    def __init__(self, paths: Iterable[str], count: int, *, has_media: bool) -> None:
        self._parts = ((at, part) for at, path in enumerate(paths) for part in parts_of(path, has_media=has_media))
        self._processes: list[subprocess.Popen[bytes]] = []
        # Also where the iterator is dropped in the middle, and where one of them cannot be started.
        self.close = finalize(self, _end, self._processes, os.getpid())
        """Ends the processes. A second call does nothing."""
        self._begun: set[int] = set()
        """Indices of the processes that something was read from."""
        self._next = 0
        """Index of the process that is asked next."""
        self._asked: deque[tuple[int, Part, int]] = deque()
        """Index of the file, part, and index of the process, of what was asked for and not read yet."""
        self._skipped = -1
        """Index of the latest file whose rest is not wanted."""
        self._reading: Iterator[Batch] = iter(())
        """The batches of the part that is being read."""
        self._is_broken = False
        for _ in range(count):
            self._processes.append(_start())

    def lines(self, at: int) -> Iterator[tuple[int, PackedLine] | None]:
        """The lines of a file, with their numbers from 1; None in place of the rest that must be read in this process.

        Args:
            at: index of the file; each is to be asked for once, in order.
        """
        if self._is_broken:
            yield None
            return
        try:
            yield from self._lines(at)
        except _Broken as error:
            self._is_broken = True
            self.close()
            guard.warn(f"{error}: only this process reads the rest.")
            yield None

    def _lines(self, at: int) -> Iterator[tuple[int, PackedLine] | None]:
        base = 0
        # What is left of a part that was left in its middle: it comes before what is wanted now.
        for _ in self._reading:
            pass
        while True:
            self._ask()
            index, part, process = self._asked.popleft()
            self._reading = self._batches(process)
            for batch in self._reading:
                if self._skipped >= index:
                    continue
                for line in batch.lines:
                    yield base + line.number, line
                base += batch.newlines
                if batch.has_problem:
                    self._skipped = index
                    yield None
            if part.is_last and index == at:
                return

    def skip(self, at: int) -> None:
        """The rest of a file is not wanted."""
        self._skipped = at

    def _ask(self) -> None:
        """Gives every process something to do."""
        while len(self._asked) < _PARTS_AHEAD * len(self._processes):
            # Of a file whose rest is not wanted the last part alone, which says that it has ended.
            at, part = next((one for one in self._parts if one[0] > self._skipped or one[1].is_last), (0, None))
            if part is None:
                return
            process = self._next
            self._next = (process + 1) % len(self._processes)
            stdin = self._processes[process].stdin
            assert stdin is not None
            try:
                write_message(stdin, _encoder.encode(part))
                stdin.flush()
            except OSError as error:
                raise _Broken(_ended(self._processes[process])) from error
            self._asked.append((at, part, process))

    def _batches(self, index: int) -> Iterator[Batch]:
        """The batches of the part that a process reads now."""
        process = self._processes[index]
        assert process.stdout is not None
        if index not in self._begun:
            self._begun.add(index)
            skip_to_begin(process.stdout)
        while True:
            data = read_message(process.stdout)
            if data is None:
                raise _Broken(_ended(process))
            batch = at_any_depth(_decoder.decode, data)
            yield batch
            if batch.is_end or batch.has_problem:
                return


class _Broken(Exception):
    """A process has ended."""


def _ended(process: subprocess.Popen[bytes]) -> str:
    code = process.wait()
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"a process that read files for rt.read() {how}"


def _start() -> subprocess.Popen[bytes]:
    # Not by multiprocessing: it would run the user's program again, or copy this process with its threads. And without
    # our variables: in a process that is recorded, this one is not to be.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ROLLOUT_TRACE_")}
    command = [sys.executable, "-c", _PROGRAM, json.dumps(sys.path)]
    with without_interrupts():
        # Without buffers: only so it can be seen whether anything has come.
        # Messages are read whole: a buffer would copy them once more.
        process = subprocess.Popen(command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    _widen(process.stdout.fileno())
    return process


def _widen(pipe: int) -> None:
    """Enlarges a pipe's buffer, if the system allows it, so that its writer waits less."""
    try:
        from fcntl import F_SETPIPE_SZ, fcntl

        fcntl(pipe, F_SETPIPE_SZ, _PIPE_BYTES)
    except (ImportError, OSError):  # No such setting here; or a user has so many wide ones already.
        pass


def _end(processes: list[subprocess.Popen[bytes]], pid: int) -> None:
    for process in processes:
        # In a forked process they are not its own.
        if os.getpid() == pid:
            process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    # What was to be written to it has no reader any more.
                    pass
        if os.getpid() == pid:
            process.wait()


# Parts of files that can be read on their own


class Part(msgspec.Struct, array_like=True):
    """Bytes of a file, as a process is asked for them."""

    path: bytes
    """As the file system has it: a name may be no text."""
    start: int = 0
    stop: int | None = None
    """None: to its end."""
    is_last: bool = True
    """Of its file."""
    has_media: bool = True
    """Whether references to media are replaced by them."""


def parts_of(path: str, *, has_media: bool = True) -> Iterator[Part]:
    """The parts of a file, in order: between lines of a plain one, between frames of one that zstd compresses.

    gzip has no such places that are found without unpacking it; such a file is one part, as is an address.
    """
    name, start = os.fsencode(path), 0
    for end in [] if is_address(path) else _ends(path):
        yield Part(name, start, end, is_last=False, has_media=has_media)
        start = end
    yield Part(name, start, has_media=has_media)


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
    """Without its steps and what they refer to."""
    steps: bytes
    """``PackedSteps``: decoded where somebody looks at them."""


class PackedSteps(msgspec.Struct, array_like=True, gc=False):
    """The steps of a line, and what they refer to."""

    record: TrajectoryRecord
    counts: list[int]
    """How many ids each segment has."""
    ids: bytes
    """int32, of all segments."""
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
_steps_decoder = msgspec.msgpack.Decoder(PackedSteps)
_OF_STEPS = ("messages", "tools", "segments", "steps", "arrays")


def packed_line(number: int, parsed: Parsed) -> PackedLine | None:
    """A line as it is sent; None where its values would not arrive as they are. Raises BadLine: they do not fit."""
    record = parsed.record
    # Times of other zones would arrive as the same moment in UTC.
    if not all(time is None or time.tzinfo is timezone.utc for time in _times(record)):
        return None
    Steps(parsed)
    for segment in record.segments:
        segment.ids = []
    for step in record.steps:
        if step.tokens is not None:
            step.tokens.logprobs = None
            # Bytes of JSON: as part of a message they would be taken for MessagePack.
            step.tokens.top_logprobs = msgspec.Raw(b"\xc0")
    of_steps = TrajectoryRecord(schema=SCHEMA, id="", **{name: getattr(record, name) for name in _OF_STEPS})
    ids = b"".join([one.tobytes() for one in parsed.ids.arrays()])
    logprobs = [None if one is None else one.tobytes() for one in parsed.logprobs]
    steps = PackedSteps(of_steps, parsed.ids.counts, ids, logprobs, parsed.top_logprobs)
    for name in _OF_STEPS:
        setattr(record, name, [])
    return PackedLine(number, record, _encoder.encode(steps))


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


def line_trajectory(line: PackedLine) -> Trajectory:
    """The trajectory of a line that was sent. Raises BadLine: its exchanges do not fit together."""
    return trajectory_of(line.record, partial(_steps_of, line.steps))


def _steps_of(data: bytes) -> list[Step]:
    import numpy as np

    one = at_any_depth(_steps_decoder.decode, data)
    ids = LineIds.of_whole(one.counts, np.frombuffer(one.ids, np.int32))
    logprobs: list[FloatArray | None] = [
        None if part is None else np.frombuffer(part, np.float32) for part in one.logprobs
    ]
    return Steps(Parsed(one.record, ids, logprobs, one.top_logprobs))()


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


# The program of a process


def main() -> None:
    """Reads what is asked for until stdin ends."""
    # What anything else prints must not get between the batches.
    results = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    results.write(_BEGIN)
    waiting: queue.Queue[bytes] = queue.Queue(_BATCHES_AHEAD)
    threading.Thread(target=_send, args=(waiting, results), daemon=True).start()
    decoder = msgspec.msgpack.Decoder(Part)
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


def batches(part: Part) -> Iterator[bytes]:
    """Yields the batches of a part. The last one says that it is the last, or that the receiver must read the rest."""
    counted: list[PackedLine] = []
    path, size = os.fsdecode(part.path), 0
    read = partial(parse_restored, path=path) if part.has_media else parse
    try:
        opened = open_binary(path)
        is_whole = part.start == 0 and part.stop is None
        with opened if is_whole else cast("BinaryIO", FilePart(opened, part.start, part.stop)) as file:
            found = NumberedLines(file, path, is_start=part.start == 0)
            for number, line in found:
                if isinstance(line, Damaged) or (packed := packed_line(number, read(line))) is None:
                    yield _encoder.encode(Batch(counted, has_problem=True))
                    return
                if size >= _BATCH_BYTES:
                    yield _encoder.encode(Batch(counted))
                    counted, size = [], 0
                counted.append(packed)
                size += len(line)
            # A line may go on in the next part only where frames end inside of lines.
            has_problem = not (part.is_last or found.ends_whole)
            if has_problem:
                del counted[-1:]
            yield _encoder.encode(
                Batch(counted, newlines=found.newlines, is_end=not has_problem, has_problem=has_problem)
            )
    except Exception:
        # It happens there again, and is reported.
        yield _encoder.encode(Batch([], has_problem=True))
