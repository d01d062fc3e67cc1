"""A recording's writer in a process of its own, as the recording's thread sees it: what it is given, what it answers.

The bytes of a closed trajectory's calls are in the journal. The process reads them there, decodes them and writes the
line; its parent sends it the rest, and keeps the trajectory until the answer: what the process cannot write, or did not
get to, the recording's thread writes as it would have without it.
"""

from __future__ import annotations

import errno
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollout_trace import credentials, guard
from rollout_trace._threads import renew_after_fork
from rollout_trace.data.costs import PriceTable, prices_by_pattern
from rollout_trace.file import locking
from rollout_trace.file.plain import dumps, loads
from rollout_trace.record.sink import NO_ANSWER, Answer

if TYPE_CHECKING:
    from rollout_trace.record.journal import Journal
    from rollout_trace.record.state import Episode, Member

# Without `site`, which runs what users and `rollout-trace run` have Python do at its start.
_COMMAND = ("-I", "-S", "-c", "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
            "from rollout_trace.record.writer_child import main; main()")  # fmt: skip
_GRACE = 1.0
"""Seconds that a process has to end which answers no more, and writes no more."""


class WriterProcess:
    """The process that writes for one recording. Any thread may hand over; the rest is for the recording's.

    Args:
        settings: what ``settings_of`` returned.
        prices: as for ``rt.recording``.
        tell: is called with answers, by a thread of its own.

    Raises:
        OSError: the process cannot be started.
    """

    def __init__(
        self, settings: dict[str, Any], prices: PriceTable | None, tell: Callable[[list[Answer]], object]
    ) -> None:
        self._prices = prices
        self._target, self._is_folder = settings["target"], settings["is_folder"]
        self._tell = tell
        self.handed: dict[int, Episode] = {}
        """What it was given and has not answered, by number."""
        self.refusals = 0
        """As of its latest answer."""
        self.is_gone = False
        """Whether it takes nothing any more."""
        self._numbers = count()
        # Held while something is sent, of which the garbage collector may want to send more: then it is not waited for.
        self._lock = threading.Lock()
        self._keys: tuple[str, ...] = ()
        # Under pytest failures of the recorder are raised: in the parent, which gets them as an answer.
        environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        package = str(Path(__file__).absolute().parents[2])
        path = json.dumps([package, *(os.path.abspath(one) for one in sys.path if one)])
        if getattr(sys, "frozen", False):
            raise OSError(errno.ENOEXEC, "a frozen program has no Python interpreter to start")
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [sys.executable, *_COMMAND, path],
            stdin=pipe,
            stdout=pipe,
            bufsize=0,
            env=environment,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        renew_after_fork(self, WriterProcess.forget)
        self._listener = threading.Thread(target=self._listen, name="rollout_trace answers", daemon=True)
        self._listener.start()
        # By a JSON that has all numbers.
        self._send({"settings": json.dumps(settings, default=float)})

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def hand_over(self, episode: Episode, *, wait: bool = True) -> bool:
        """Gives it a closed episode to write; False where it cannot: this process writes it then.

        Without ``wait`` it takes no time: False where something would have to be collected, or to be waited for.
        """
        members = episode.members
        if self.is_gone or not (wait or (len(members) == 1 and members[0].is_in_journal)):
            return False
        if not all(map(_has_bytes, members)):
            return False
        number = next(self._numbers)
        message = {"episode": number, "refusals": self.refusals, "members": list(map(_message, members))}
        # Before it is sent: the answer may be there first.
        self.handed[number] = episode
        states = [member.state for member in members]
        if not self._send(message, wait=wait):
            del self.handed[number]
            return False
        for state in states:
            if self._prices is not None and state is not None:
                # Whoever reads the steps here gets their costs too.
                state.add_completion(self._prices.apply)
        return True

    def answered(self, answer: Answer) -> Episode | None:
        """Takes an answer; returns the episode that it is about."""
        self.refusals = answer.refusals
        return None if answer.number is None else self.handed.pop(answer.number, None)

    def flush(self) -> None:
        """Asks the process to answer at once."""
        self._send({"flush": True})

    def end(self) -> None:
        """Lets the process close its file, and waits until it has ended. Call it when everything has been answered."""
        self._send({"end": True})
        self._close()
        self._listener.join()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def take_back(self) -> tuple[int, list[Episode], set[str]]:
        """After it ended too early: returns its exit code, what is unanswered, and the ids it has written of that.

        It writes nothing any more.
        """
        self.is_gone = True
        self._close()
        try:
            code = self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        # Closed only when nobody reads it: the number of a closed descriptor may be a file of the user's at once.
        self._listener.join(_GRACE)
        if self._process.stdout is not None and not self._listener.is_alive():
            guard.run_all("write", self._process.stdout.close)
        left, self.handed = list(self.handed.values()), {}
        written: set[str] = set()
        # It may have written a line and not said so, or the beginning of one.
        guard.run_all("write", lambda: written.update(self._written([one.id for each in left for one in each.members])))
        return code, left, written

    def _written(self, ids: list[str]) -> set[str]:
        # Imported on use: almost no recording needs it.
        from rollout_trace.record.recovery import FileOutput, FolderOutput

        output = (FolderOutput if self._is_folder else FileOutput)(Path(self._target))
        if ids:
            output.cut(ids)
        return output.ids(ids, {str(self.pid)}) if ids else set()

    def forget(self) -> None:
        """In a forked process: it is the other one's. Kept open here, its pipe would hide the other one's end."""
        self.is_gone, self.handed = True, {}
        # Nothing is waited for when it is deleted.
        self._process.returncode = 0
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                guard.run_all("fork", pipe.close)

    def _close(self) -> None:
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()

    def _send(self, message: dict[str, Any], *, wait: bool = True) -> bool:
        if not self._lock.acquire(blocking=wait):
            return False
        try:
            keys = credentials.all_keys()
            if keys != self._keys:
                message = {"keys": list(keys), **message}
            data = dumps(message) + b"\n"
            # A shorter one is written whole, or not at all.
            if not wait and len(data) > select.PIPE_BUF:
                return False
            is_sent = self._write(data, wait=wait)
            self._keys = keys if is_sent else self._keys
            return is_sent
        finally:
            self._lock.release()

    def _write(self, data: bytes, *, wait: bool) -> bool:
        rest, pipe = memoryview(data), self._process.stdin
        try:
            while rest and pipe is not None:
                written = pipe.write(rest)
                if written is not None:
                    rest = rest[written:]
                elif not wait:
                    return False
                else:
                    # Not `select`, which takes no descriptor past 1023.
                    poll = select.poll()
                    poll.register(pipe, select.POLLOUT)
                    poll.poll()
        except (OSError, ValueError):
            self.is_gone = True
            return False
        return True

    def _listen(self) -> None:
        pipe, rest = self._process.stdout, b""
        try:
            # A program may close all its descriptors.
            with suppress(OSError, ValueError):
                while pipe is not None and (chunk := pipe.read(1 << 16)):
                    *lines, rest = (rest + chunk).split(b"\n")
                    answers: list[Answer] = []
                    for line in lines:
                        # A handler of the user's may raise anything of what is logged.
                        with suppress(Exception):
                            self._heard(line, answers)
                    if answers:
                        self._tell(answers)
        finally:
            # Whatever has happened: without it `stop` would wait for ever.
            self._tell([NO_ANSWER])

    def _heard(self, line: bytes, answers: list[Answer]) -> None:
        message = loads(line)
        if "results" in message:
            answers.append(Answer(message["episode"], message["results"], message["refusals"]))
        elif "stats" in message:
            for name, by in message["stats"].items():
                guard.count(name, by)
        else:
            level, text, key = message["log"]
            # This process, or another one of its kind, may have said the same.
            if guard.first(f"writer-process:{text}" if key is None else key):
                guard.log(level, text, key)


def settings_of(
    target: str, *, is_folder: bool, file: dict[str, Any], shards: dict[str, Any], prices: Any, journal: Journal
) -> dict[str, Any] | None:
    """Returns the settings to start a writer process with; None if it cannot do this recording's work.

    It can not where texts are redacted by rules, since the journal then has decoded steps, made here; and where prices
    are applied by a class of the user's.
    """
    if journal.redactor is not None or not (prices is None or type(prices) is PriceTable) or not locking.HAS_LOCKS:
        return None
    return {
        "target": target,
        "is_folder": is_folder,
        "file": file,
        "shards": {**shards, "spool": None},
        "prices": None if prices is None else {name: asdict(one) for name, one in prices_by_pattern(prices).items()},
        "journal": str(journal.path),
        "prefix": journal.files.prefix,
        "parent": os.getpid(),
    }


def _has_bytes(member: Member) -> bool:
    """Returns whether the steps can be made from the bytes in the journal."""
    state, log, journal = member.state, member.log, member.journal
    return (
        state is not None
        and log is not None
        and journal is not None
        # Steps that were looked at may have been given a reward; frames of model calls add to steps, too.
        and not (log.was_read or log.model_frames or state.at_completion or member.trajectory.exchanges)
        and log.size > 0
        and journal.has_bytes_of(log.calls)
    )


def _message(member: Member) -> dict[str, Any]:
    assert member.journal is not None
    assert member.log is not None
    return {
        "id": member.journal.id,
        "calls": [call.id for call in member.log.calls],
        "files": [str(path) for path in member.journal.paths],
        # Else it is in the journal too.
        "line": None if member.is_in_journal else member.line_without_steps().decode(),
    }
