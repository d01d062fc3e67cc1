"""The program of a writer process: follows its parent's journal, and writes the trajectories that have closed.

Standard input has what it is to do, standard output its answers, both as lines of JSON. It ends with its parent: where
that did not close its recording, what the journal still has is written then, as ``rt.recover`` would.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import select
import signal
import sys
import time
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from rollout_trace import credentials, guard
from rollout_trace.data.costs import Price, PriceTable
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.errors import WriteError
from rollout_trace.file import journal as form
from rollout_trace.file.decode import decode
from rollout_trace.file.journal import Record
from rollout_trace.file.plain import dumps, loads
from rollout_trace.file.shards import Settings, ShardWriter
from rollout_trace.file.writer import JSONLWriter
from rollout_trace.record import lifecycle
from rollout_trace.record.recovered import Pieces, steps_of
from rollout_trace.record.recovery import FileOutput, FolderOutput, recover_output

_PATIENCE = 10.0
"""Seconds that the parent's end is waited for once its pipe is closed."""
_PAUSE = 0.01
_TOGETHER = 0.05
"""Seconds for which an answer waits for others, and how many are sent at once in any case."""
_MANY = 32


class _Followed:
    """One file of the parent's journal, and the places of each trajectory's records in it."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        self._read = 0
        self._places: dict[str, list[tuple[int, int]]] = {}

    def read_on(self) -> None:
        """Looks at what was appended since the last time."""
        data = os.pread(self._file, os.fstat(self._file).st_size - self._read, self._read)
        if not data:
            return
        found, done = list(form.records(data)), 0
        for one, end in zip(found, [*(one.offset for one in found[1:]), len(data)], strict=True):
            # A record that another thread is in the middle of writing is read the next time.
            if isinstance(one, Record):
                done = end
                place = self._read + one.offset, end - one.offset
                self._places.setdefault(str(one.head.get("trajectory")), []).append(place)
                if one.kind == form.WRITTEN:
                    self._places.pop(one.head["trajectory"], None)
        self._read += done

    def take(self, trajectory: str) -> list[Record]:
        """The records of a trajectory, which are not asked for again."""
        found = []
        for offset, length in self._places.pop(trajectory, ()):
            found += [one for one in form.records(os.pread(self._file, length, offset)) if isinstance(one, Record)]
        return found

    def is_deleted(self) -> bool:
        """Whether nothing needs it any more; it is closed then."""
        if os.fstat(self._file).st_nlink:
            return False
        os.close(self._file)
        return True


class _Answers(logging.Handler):
    """Tells the parent: what has become of its trajectories, and what is logged here."""

    def __init__(self, file: int) -> None:
        super().__init__()
        self._file = file
        self._lines: list[bytes] = []
        self._counted = guard.stats()

    def add(self, **message: Any) -> None:
        """Adds an answer."""
        self._lines.append(dumps(message) + b"\n")

    def emit(self, record: logging.LogRecord) -> None:
        """Adds what was logged."""
        self.add(log=[record.levelno, record.getMessage(), getattr(record, "once", None)])

    @property
    def is_waiting(self) -> bool:
        """Whether something was not sent yet."""
        return bool(self._lines)

    @property
    def are_many(self) -> bool:
        """Whether there are enough answers to send."""
        return len(self._lines) >= _MANY

    def stop(self) -> None:
        """Closes the pipe."""
        os.close(self._file)

    def send(self) -> None:
        """Sends what was added, if the parent is there."""
        counted, before = guard.stats(), self._counted
        more = {one.name: getattr(counted, one.name) - getattr(before, one.name) for one in fields(counted)}
        if any(more.values()):
            self.add(stats={name: by for name, by in more.items() if by})
            self._counted = counted
        data, self._lines = memoryview(b"".join(self._lines)), []
        with suppress(OSError):
            while data:
                data = data[os.write(self._file, data) :]


class Child:
    """The work of the writer process.

    Args:
        settings: as ``writer_process.settings_of`` made them.
        answers: to the parent.
    """

    def __init__(self, settings: dict[str, Any], answers: _Answers) -> None:
        self._settings = settings
        self._answers = answers
        target = settings["target"]
        self._writer: JSONLWriter | ShardWriter
        if settings["is_folder"]:
            self._writer = ShardWriter(target, Settings(**settings["shards"]), settings["file"])
        else:
            self._writer = JSONLWriter(target, **settings["file"])
        prices = settings["prices"]
        self._prices = None if prices is None else PriceTable({name: Price(**one) for name, one in prices.items()})
        self._files: dict[str, _Followed] = {}
        self._refusals = 0
        """How often the file system has refused a line."""
        self.is_ended = False
        """Whether the parent has ended the recording."""

    def do(self, message: dict[str, Any]) -> None:
        """Does what the parent asks for."""
        if "members" in message:
            results = [self._write(one, message["refusals"]) for one in message["members"]]
            self._answers.add(episode=message["episode"], results=results, refusals=self._refusals)
        if "flush" in message:
            self._answers.send()
        if "end" in message:
            self.is_ended = True
            guard.run_all("write", self._writer.close)

    def let_go(self) -> None:
        """Closes files that the parent has deleted."""
        self._files = {path: file for path, file in self._files.items() if not file.is_deleted()}

    def _write(self, one: dict[str, Any], refusals: int) -> int | str | None:
        if refusals != self._refusals:
            # It was sent before the parent knew: it is not to wait for the same lock or disk once more.
            return None
        try:
            trajectory = self._trajectory(one)
            self._writer.write(trajectory)
        except BaseException as error:
            if isinstance(error, WriteError) and error.is_in_file:
                # Whole in the file, though maybe not on the disk: to write it again would double it.
                guard.warn(str(error))
            elif isinstance(error, OSError):
                self._refusals += 1
                return None
            else:
                return guard.describe(error)
        return len(trajectory.steps)

    def _trajectory(self, one: dict[str, Any]) -> Trajectory:
        """The trajectory, as the parent would have made it."""
        records: list[Record] = []
        for path in one["files"]:
            if path not in self._files:
                self._files[path] = _Followed(path)
            self._files[path].read_on()
            records += self._files[path].take(one["id"])
        pieces = Pieces(one["id"], [record for record in records if record.kind != form.STEPS])
        steps = steps_of(pieces, one["calls"])
        if pieces.damaged or pieces.calls.keys() != set(one["calls"]):
            raise ValueError(f"the journal lacks calls of trajectory {one['id']}: {pieces.damaged[:1]}")
        line = one["line"]
        if line is None:
            # As it closed: fields that were set later are not written.
            closed = [bytes(record.blobs[0]) for record in pieces.of(form.HEAD) if record.head.get("is_closed")]
            line = closed[-1].decode()
        trajectory = decode(line.encode())
        trajectory.steps = steps
        lifecycle.complete_fields(trajectory)
        if self._prices is not None:
            self._prices.apply(trajectory)
        return trajectory

    def end_for_parent(self) -> None:
        """The parent has ended without closing its recording: writes what its journal has, and deletes that."""
        settings = self._settings
        place = Path(os.path.realpath(settings["target"]))
        output = FolderOutput(place, self._writer) if settings["is_folder"] else FileOutput(place, self._writer)
        change = None if self._prices is None else self._prices.apply
        end = time.monotonic() + _PATIENCE
        # Its locks go with it, a moment after its pipe. One that goes on without its pipe writes by itself.
        while os.getppid() == settings["parent"]:
            if time.monotonic() > end:
                return
            time.sleep(_PAUSE)
        found = recover_output(output, write=True, of=settings["prefix"], change=change)
        report = found.report
        if report.written or report.not_written:
            aborted = sum(one.status == "aborted" for one in found)
            guard.warn(
                f"the process {settings['parent']} ended without closing its recording: {len(report.written)} "
                f"trajectories that it had not written yet were written to {settings['target']}, {aborted} of them as "
                f"'aborted'. {' '.join(report.not_written)}"
            )


def main() -> None:
    """The program."""
    # It ends with its parent, and has to outlive it: what ends both by the terminal, or as a group, is not for it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    answers = _Answers(os.dup(1))
    # What others may print is no answer.
    os.dup2(2, 1)
    guard.logger.addHandler(answers)
    guard.logger.propagate = False
    gc.collect()
    gc.freeze()
    child: Child | None = None
    rest = b""
    while True:
        # Answers are sent together: each time, its parent's interpreter is taken from the agents.
        if answers.is_waiting and not select.select([0], [], [], 0 if answers.are_many else _TOGETHER)[0]:
            answers.send()
        if not (chunk := os.read(0, 1 << 18)):
            break
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            message = loads(line)
            credentials.remember(*message.pop("keys", ()))
            if child is None:
                child = Child(json.loads(message["settings"]), answers)
            else:
                child.do(message)
        if child is not None:
            child.let_go()
    answers.send()
    if child is not None and not child.is_ended:
        guard.logger.removeHandler(answers)
        guard.logger.addHandler(logging.StreamHandler(sys.stderr))
        # A parent that lives sees that nothing comes any more.
        answers.stop()
        child.end_for_parent()
