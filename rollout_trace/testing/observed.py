"""One test whose model calls are recorded, and replayed from a cassette or recorded into one."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Literal, TypeVar

from rollout_trace import credentials, guard
from rollout_trace.clients.loopback.addresses import base_addresses
from rollout_trace.clients.loopback.server import LoopbackServer
from rollout_trace.data.exchange import Exchange
from rollout_trace.data.trajectory import Trajectory, to_task
from rollout_trace.process import children
from rollout_trace.process.instrument import instrument
from rollout_trace.process.redirect import redirect
from rollout_trace.record import lifecycle, program
from rollout_trace.view.numbers import of
from rollout_trace.wire.profiles import EngineName

from . import cassette, live_calls
from ._explain import record_command
from .cassette_server import CassetteServer, RecordingServer, ReplayingServer
from .live_calls import LiveCalls
from .matching import Matcher, MatchOptions, Paint, Unmatched, changes_text, unused_text
from .rollout import RecordedRollout
from .routing import ModelTraffic, child_environment
from .scripted import ScriptedServer
from .unseen import ScriptedTestServer, UnseenCalls

_NOT_REDIRECTED = (
    "It was sent through a library whose calls cannot be replayed (httpx, httpx2, aiohttp and requests can). A child "
    "process that reads OPENAI_BASE_URL or the like can be replayed."
)
T = TypeVar("T")
Mode = Literal["record", "replay", "off"]

_LONGEST_WAIT = 15.0
"""Seconds that answers which go on at the end of a test are waited for."""
_SECRET = re.compile("(API_?KEY|TOKEN|SECRET|SECRET_KEY|SECRET_ACCESS_KEY|PASSWORD)$", re.I)
"""Ends of the names of environment variables that hold keys."""


@dataclass(frozen=True)
class CassetteOptions:
    """Options of a test's mark ``replay``."""

    paths: Sequence[Path]
    """The cassettes; the first one is recorded into."""
    matching: MatchOptions = field(default_factory=MatchOptions)
    timing: bool = False
    cli: str | None = None
    """The known program that the test runs."""


def name_in_cassette(nodeid: str) -> str:
    """A test's name without its folders, with which a cassette may be moved."""
    file, _, test = nodeid.partition("::")
    # A parameter may have slashes too: names of models do.
    return f"{file.rpartition('/')[2]}::{test}"


class ObservedTest:
    """A test, as a command names it, while it runs: its trajectory takes the calls that are in no other.

    ``mode`` says whether its cassette is replayed or recorded, ``engine`` what servers are asked for ids as.
    """

    def __init__(
        self,
        nodeid: str,
        mode: Mode = "off",
        options: CassetteOptions | None = None,
        engine: EngineName | None = None,
    ) -> None:
        self._nodeid = nodeid
        self.name = name_in_cassette(nodeid)
        """Of the test; its lines in a cassette have it."""
        self.mode: Mode = mode if options is not None else "off"
        self._options = options or CassetteOptions(())
        self._engine = engine
        self._ending = ExitStack()
        self._server: CassetteServer | None = None
        self._matcher: Matcher | None = None
        self._before: list[Trajectory] = []
        """What the cassettes held when the test began."""
        self._made_in_test: int | None = None
        self._unused: Sequence[Exchange] = ()
        self._live_calls: LiveCalls | None = None
        self._traffic: ModelTraffic | None = None
        self._threads: frozenset[threading.Thread] | None = None
        """Those that there were before the test's function."""
        self._gave_up = False
        """Whether requests were still being answered after the longest wait."""
        self._scripted: ScriptedServer | None = None
        self._shown: dict[str, int] = {}
        """How much of what went wrong was shown, by its kind."""
        self._environ = dict(os.environ)
        self.trajectory = Trajectory(name="test", task=to_task(self.name))
        self._trajectories: list[Trajectory] = []
        self._folder: Path | None = None
        """Of the programs that the test runs."""
        self.rollout = RecordedRollout(
            self.trajectories, lambda: children.for_children.get("OPENAI_BASE_URL"), lambda: self._folder
        )

    def trajectories(self) -> list[Trajectory]:
        """The test's own trajectory, and those that were opened while it ran, in that order."""
        return list(self._trajectories)

    def begin(self) -> None:
        """Opens the trajectory; from now on calls are recorded, and go to the cassette. Raises CassetteError."""
        try:
            self._begin()
        except BaseException:
            self._ending.close()
            lifecycle.discard(self.trajectory, None)
            raise

    def _begin(self) -> None:
        self._before = [one for path in self._to_load() for one in cassette.load(path, self.name)]
        # A tool may print the environment: no cassette holds a key, whether it is sent to a model or not.
        credentials.remember(*(value for name, value in self._environ.items() if _SECRET.search(name)))
        self._open()
        unseen = UnseenCalls(self.trajectory)
        if self.mode == "replay":
            self._matcher = Matcher([one.exchanges for one in self._before], self._options.matching)
            timing = self._options.timing
            self._server = ReplayingServer(self._matcher, timing=timing, unseen=unseen, environ=self._environ)
        elif self.mode == "record":
            self._server = RecordingServer(unseen, environ=self._environ)
        if self._server is not None:
            self._stand_in(self._server, is_live=self.mode == "record")
        if self._options.cli is not None:
            folder = _folder_of(self.name)
            self._ending.callback(shutil.rmtree, folder, ignore_errors=True)
            self._folder = folder / "work"
            self._ending.callback(children.for_children.clear)
            children.for_children["HOME"] = str(folder / "home")
        self._ending.callback(instrument(engine=self._engine).undo)

    def _to_load(self) -> Sequence[Path]:
        if self.mode != "record":
            return self._options.paths if self.mode == "replay" else []
        # What is recorded anew is compared with what was there.
        return [path for path in self._options.paths[:1] if cassette.can_load(path, self.name)]

    def _open(self) -> None:
        lifecycle.when_opened.append(self._trajectories.append)
        self._ending.callback(lifecycle.when_opened.remove, self._trajectories.append)
        lifecycle.begin(self.trajectory, None, is_root=True)
        program.lend(self.trajectory)
        self._ending.callback(program.lend, None)

    def script(self) -> ScriptedServer:
        """A server that answers every model call of the test, from a script that it is yet to be given."""
        self._scripted = server = ScriptedTestServer(UnseenCalls(self.trajectory), self._environ)
        self._stand_in(server, is_live=False)
        self._set_variables(child_environment(server.url))
        return server

    def _stand_in(self, server: LoopbackServer, *, is_live: bool) -> None:
        """Starts a loopback server that answers for all model servers, even in child processes, until the test ends.

        Where it does not ask the real ones (``is_live``), nothing else may; and SDKs that insist on a key get one.
        """
        self._ending.callback(server.close)
        server.start()
        variables = child_environment(server.url)
        keys = {name: value for name, value in variables.items() if name.endswith("_API_KEY")}
        if is_live:
            variables = {name: value for name, value in variables.items() if name not in keys}
        else:
            self._set_variables(keys)
            self._live_calls = LiveCalls()
            self._ending.callback(self._live_calls.undo)
        children.for_children.update(variables)
        self._ending.callback(children.for_children.clear)
        self._traffic = ModelTraffic(server.url, base_addresses(self._environ))
        self._ending.callback(redirect(self._traffic.route).undo)

    def _set_variables(self, variables: dict[str, str]) -> None:
        """Sets environment variables until the test ends."""
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        self._ending.callback(_restore, before)

    def run_begins(self) -> None:
        """Call before the test's function, after its fixtures have begun."""
        self._threads = frozenset(threading.enumerate())

    def run_ended(self, error: BaseException | None) -> None:
        """Call with the exception that the test's function raised, if any, before its fixtures end."""
        if error is not None:
            self.trajectory.status = "failed"
        self._settle(_LONGEST_WAIT)
        if isinstance(self._server, RecordingServer):
            self._made_in_test = len(self._server.exchanges)
        if self._matcher is not None:
            late = {id(one) for found in self._before for one in found.exchanges[cassette.made_in_test(found) :]}
            self._unused = [one for one in self._matcher.unused() if id(one) not in late]

    def failed(self) -> None:
        """Call when the test has failed in any way, so that its trajectory is shown."""
        self.trajectory.status = "failed"

    @property
    def was_recorded(self) -> bool:
        """Whether the cassette held the test before it began."""
        return bool(self._before)

    def _settle(self, wait: float) -> None:
        """Waits for requests that other threads have under way: their answers are the test's too."""
        if self._server is None or self._gave_up:
            return
        # A stream that nobody reads any more may go on for as long as the model likes.
        self._gave_up = not self._server.settle(wait)

    def unanswered(self, *, width: int = 100, paint: Paint | None = None) -> list[str]:
        """Explains each call without a recorded answer since the last time."""
        calls = self._server.unanswered if isinstance(self._server, ReplayingServer) else []
        errors = [] if self._scripted is None else self._scripted.errors
        hosts = [] if self._live_calls is None else self._live_calls.refused
        hosts = list(dict.fromkeys(self._new("hosts", hosts)))
        return [
            *(
                one.text(width=width, paint=paint, test=self._nodeid) if isinstance(one, Unmatched) else str(one)
                for one in self._new("calls", calls)
            ),
            *(f"scripted_llm could not answer: {guard.describe(one)}" for one in self._new("errors", errors)),
            *(f"a live call to {host} was refused. {_NOT_REDIRECTED}" for host in hosts),
        ]

    def _new(self, kind: str, found: Sequence[T]) -> Sequence[T]:
        """Returns the items that are new since the last time."""
        before, self._shown[kind] = self._shown.get(kind, 0), len(found)
        return found[before:]

    def unused(self, *, width: int = 100, paint: Paint | None = None) -> str:
        """The recorded calls that the test's function did not make, for people; empty where it made all."""
        if not self._unused:
            return ""
        made = f"{of(len(self._unused), 'recorded call')} {'was' if len(self._unused) == 1 else 'were'} not made:"
        listed = unused_text(self._unused, width=width, paint=paint)
        return f"{made}\n{listed}\n\nIf that is meant, record again: {record_command(self._nodeid)}"

    def unreachable(self) -> list[str]:
        """While recording: why servers gave no answer, a sentence each."""
        return self._server.unreachable if isinstance(self._server, RecordingServer) else []

    def end(self, error: BaseException | None = None, *, wait: float | None = None) -> None:
        """Closes what ``begin`` opened. After ``wait`` seconds (None: as usual) open requests are cut off."""
        self._settle(_LONGEST_WAIT if wait is None else wait)
        if self._traffic is not None and self._threads is not None and self.mode != "record":
            live_calls.refuse(self.name, self._threads, self._traffic.origins)
        self._ending.close()
        # Where the program records too, a test without a call is no line of its file.
        if error is None and lifecycle.discard(self.trajectory, None):
            self.trajectory.status = "completed"
        else:
            lifecycle.finish(self.trajectory, None, error)

    def save(self, *, width: int = 100, paint: Paint | None = None) -> str:
        """Writes the cassette, after the end; returns what differs from before, for people. Raises CassetteError."""
        if not isinstance(self._server, RecordingServer):
            return ""
        exchanges = self._server.exchanges
        own = self._trajectories.index(self.trajectory)
        lines = cassette.with_exchanges(self._trajectories, own, exchanges, self._made_in_test, self.name)
        cassette.save(self._options.paths[0], self.name, lines)
        count = of(len(exchanges), "exchange")
        if self._gave_up:
            count += f" (some had not ended {_LONGEST_WAIT:g} s after the test, and were cut off)"
        before = [one for found in self._before for one in found.exchanges]
        if not self._before:
            return f"recorded, {count}"
        changed = changes_text(before, exchanges, width=width, paint=paint)
        return f"recorded again, {count}, changed:\n{changed}" if changed else f"recorded again, {count}, as before"


def _folder_of(name: str) -> Path:
    """An empty folder for the programs of a test, at the same place in every run, with their home and their work.

    The answers in a cassette name files by their whole path, and tools are run with that again.
    """
    # Not what TMPDIR says, which differs from machine to machine.
    above = Path("/tmp") if os.name == "posix" else Path(tempfile.gettempdir())
    folder = above / f"rollout-trace-{blake2b(name.encode(), digest_size=5).hexdigest()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    for inside in ("home", "work"):
        (folder / inside).mkdir()
    return folder


def _restore(before: dict[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
