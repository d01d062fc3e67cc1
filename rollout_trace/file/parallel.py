"""Reads files in several processes: they unpack and parse lines, and trajectories are made of them here, in order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from weakref import finalize

import msgspec

from rollout_trace import guard
from rollout_trace._python import without_interrupts
from rollout_trace.data.user_values import brief
from rollout_trace.file.decode import Parsed
from rollout_trace.file.line_format import at_any_depth
from rollout_trace.file.parallel_worker import (
    Batch,
    Part,
    from_bytes,
    parsed_line,
    parts_of,
    read_message,
    skip_to_begin,
    wanted_of,
    write_message,
)

_AHEAD = 2
"""Parts that each process is asked for before the first of them is wanted."""
_PIPE_BYTES = 1 << 20
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from rollout_trace.file.parallel_worker import main; main()"
)


class ReadParsed(NamedTuple):
    """A line that another process has parsed."""

    number: int
    """From 1, in its file."""
    parsed: Parsed


def check_workers(workers: Any) -> int:
    """The number of processes to read with.

    Raises:
        TypeError: it is no whole number.
        ValueError: it is below 1.
    """
    if isinstance(workers, bool) or not isinstance(workers, int):
        raise TypeError(f"workers is {brief(workers)}; give a number of processes, such as workers=2.")
    if workers < 1:
        raise ValueError(f"workers is {workers}; give 1, to read in this process, or more.")
    return workers


class Workers:
    """Processes that read the parts of files in turn, a few parts ahead of what is wanted.

    Args:
        paths: the files, in the order in which they will be wanted.
        count: of the processes.
        has_media: whether references to media are replaced by them.
    """

    def __init__(self, paths: Iterable[str], count: int, *, has_media: bool) -> None:
        self._has_media = has_media
        self._parts = ((at, part) for at, path in enumerate(paths) for part in parts_of(path))
        self._processes: list[subprocess.Popen[bytes]] = []
        # Also where the iterator is dropped in the middle, and where one of them cannot be started.
        self._close = finalize(self, _end, self._processes, os.getpid())
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

    def close(self) -> None:
        """Ends the processes. A second call does nothing."""
        self._close()

    def lines(self, at: int) -> Iterator[ReadParsed | None]:
        """The lines of a file; None in the place of the rest where that must be read in this process.

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
            guard.warn(f"{error}: the rest is read by this process alone.")
            yield None

    def _lines(self, at: int) -> Iterator[ReadParsed | None]:
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
                    yield ReadParsed(base + line.number, parsed_line(line))
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
        """Has every process something to do."""
        while len(self._asked) < _AHEAD * len(self._processes):
            found = self._next_part()
            if found is None:
                return
            at, part = found
            process = self._next
            self._next = (process + 1) % len(self._processes)
            stdin = self._processes[process].stdin
            assert stdin is not None
            try:
                write_message(stdin, msgspec.msgpack.encode(wanted_of(part, has_media=self._has_media)))
                stdin.flush()
            except OSError as error:
                raise _Broken(_ended(self._processes[process])) from error
            self._asked.append((at, part, process))

    def _next_part(self) -> tuple[int, Part] | None:
        """The next part that is wanted, with the index of its file."""
        for at, part in self._parts:
            if at > self._skipped or part.is_last:
                return at, part
        return None

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
            batch = at_any_depth(from_bytes, data)
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
    """Has a pipe take more before its writer waits, where the system allows it."""
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
