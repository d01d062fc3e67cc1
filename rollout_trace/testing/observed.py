"""One test whose model calls are recorded, and replayed from a cassette or recorded into one."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rollout_trace.data.exchange import Exchange
from rollout_trace.data.trajectory import Trajectory, to_task
from rollout_trace.file.decode import decode
from rollout_trace.file.encode import encode
from rollout_trace.process import environment
from rollout_trace.process.instrument import instrument
from rollout_trace.process.redirect import redirect
from rollout_trace.record import lifecycle, program
from rollout_trace.view.numbers import of

from . import cassette
from .cassette_server import CassetteServer, RecordingServer, ReplayingServer
from .live_calls import LiveCalls
from .matching import Matcher, MatchOptions, Paint, Unmatched, changes_text, unused_text
from .rollout import RecordedRollout
from .routing import ModelTraffic
from .unseen import UnseenCalls
from .upstreams import base_addresses, child_environment

if TYPE_CHECKING:
    from rollout_trace.engines.profiles import EngineName

    from ._server import LoopbackServer

_NOT_REDIRECTED = (
    "It was sent through a library whose calls cannot be replayed (httpx, httpx2, aiohttp and requests can). A child "
    "process that reads OPENAI_BASE_URL or the like can be replayed."
)
Mode = Literal["record", "replay", "off"]

_KEPT = ("rollout_trace", "python", "packages")
"""What a cassette holds of its trajectories' environment: nothing of the machine that it was recorded on."""


@dataclass(frozen=True)
class CassetteOptions:
    """What a test's mark ``replay`` asks for."""

    paths: Sequence[Path]
    """The cassettes; the first one is recorded into."""
    matching: MatchOptions = field(default_factory=MatchOptions)
    timing: bool = False


def name_in_cassette(nodeid: str) -> str:
    """A test's name without its folders, with which a cassette may be moved."""
    file, _, test = nodeid.partition("::")
    # A parameter may have slashes too: names of models do.
    return f"{file.rpartition('/')[2]}::{test}"


class ObservedTest:
    """A test while it runs: its trajectory takes the calls that are in no other.

    Args:
        nodeid: the test as a command names it: ``folder/file.py::test``.
        mode: whether its cassette is replayed or recorded; ``off``: it has none.
        options: of its cassette.
        engine: what servers are asked for ids as, like that of ``rt.instrument``.
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
        self._shown = 0, 0
        """How many unanswered requests, and refused hosts, were shown."""
        self._environ = dict(os.environ)
        self.trajectory = Trajectory(name="test", task=to_task(self.name))
        self._trajectories: list[Trajectory] = []
        self.rollout = RecordedRollout(self.trajectories)

    def trajectories(self) -> list[Trajectory]:
        """The test's own trajectory, and those that were opened while it ran, in that order."""
        return list(self._trajectories)

    def begin(self) -> None:
        """Opens the trajectory; from now on calls are recorded, and go to the cassette.

        Raises:
            CassetteError: the cassette cannot be replayed.
        """
        try:
            self._begin()
        except BaseException:
            self._ending.close()
            raise

    def _begin(self) -> None:
        self._before = [one for path in self._to_load() for one in cassette.load(path, self.name)]
        self._open()
        unseen = UnseenCalls(self.trajectory)
        if self.mode == "replay":
            self._matcher = Matcher([one.exchanges for one in self._before], self._options.matching)
            timing = self._options.timing
            self._server = ReplayingServer(self._matcher, timing=timing, unseen=unseen, environ=self._environ)
            self._live_calls = LiveCalls()
            self._ending.callback(self._live_calls.undo)
        elif self.mode == "record":
            self._server = RecordingServer(unseen, environ=self._environ)
        if self._server is not None:
            self.stand_in(self._server, sets_keys=self.mode == "replay")
        self._ending.callback(instrument(engine=self._engine).undo)

    def _to_load(self) -> Sequence[Path]:
        if self.mode == "replay":
            return self._options.paths
        # What is recorded anew is compared with what was there.
        return [path for path in self._options.paths[:1] if self.mode == "record" and _can_load(path, self.name)]

    def _open(self) -> None:
        lifecycle.when_opened.append(self._trajectories.append)
        self._ending.callback(lifecycle.when_opened.remove, self._trajectories.append)
        lifecycle.begin(self.trajectory, None, is_root=True)
        program.lend(self.trajectory)
        self._ending.callback(program.lend, None)

    def stand_in(self, server: LoopbackServer, *, sets_keys: bool) -> None:
        """Has a loopback server answer for every model server, for child processes too, until the test ends.

        Args:
            server: it is started here, and closed at the end.
            sets_keys: whether API keys that the environment lacks are set, to none that is real: SDKs insist on one.
        """
        self._ending.callback(server.close)
        server.start()
        variables = child_environment(server.url)
        keys = {name: value for name, value in variables.items() if name.endswith("_API_KEY")}
        if not sets_keys:
            variables = {name: value for name, value in variables.items() if name not in keys}
        elif keys:
            self.set_variables(keys)
        environment.for_children.update(variables)
        self._ending.callback(environment.for_children.clear)
        self._ending.callback(redirect(ModelTraffic(server.url, base_addresses(self._environ)).route).undo)

    def set_variables(self, variables: dict[str, str]) -> None:
        """Sets environment variables until the test ends."""
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        self._ending.callback(_restore, before)

    def run_ended(self, error: BaseException | None) -> None:
        """To be called with the exception that the test's function raised, if any, before its fixtures end."""
        if error is not None:
            self.trajectory.status = "failed"
        if self._server is not None:
            self._server.wait_idle()
        if isinstance(self._server, RecordingServer):
            self._made_in_test = len(self._server.exchanges)
        if self._matcher is not None:
            late = {id(one) for found in self._before for one in found.exchanges[_made_in_test(found) :]}
            self._unused = [one for one in self._matcher.unused() if id(one) not in late]

    def failed(self) -> None:
        """To be called when the test has failed in any way: its trajectory is shown so."""
        self.trajectory.status = "failed"

    @property
    def was_recorded(self) -> bool:
        """Whether the cassette held the test before it began."""
        return bool(self._before)

    def unanswered(self, *, width: int = 100, paint: Paint | None = None) -> list[str]:
        """What is wrong with each call that no recorded one answers, for people; those since the last time."""
        if not isinstance(self._server, ReplayingServer) or self._live_calls is None:
            return []
        found = self._server.unanswered[self._shown[0] :]
        hosts = self._live_calls.refused[self._shown[1] :]
        self._shown = self._shown[0] + len(found), self._shown[1] + len(hosts)
        texts = [
            one.text(width=width, paint=paint, test=self._nodeid) if isinstance(one, Unmatched) else str(one)
            for one in found
        ]
        return [*texts, *(f"a live call to {host} was refused. {_NOT_REDIRECTED}" for host in dict.fromkeys(hosts))]

    def unused(self, *, width: int = 100, paint: Paint | None = None) -> str:
        """The recorded calls that the test's function did not make, for people; empty where it made all."""
        if not self._unused:
            return ""
        made = f"{of(len(self._unused), 'recorded call')} {'was' if len(self._unused) == 1 else 'were'} not made:"
        listed = unused_text(self._unused, width=width, paint=paint)
        return f"{made}\n{listed}\n\nIf that is meant, record again: pytest --replay=record {shlex.quote(self._nodeid)}"

    def unreachable(self) -> list[str]:
        """While recording: why servers gave no answer, a sentence each."""
        return self._server.unreachable if isinstance(self._server, RecordingServer) else []

    def end(self, error: BaseException | None = None) -> None:
        """Closes everything that ``begin`` opened. ``error`` is the exception that ended the test."""
        try:
            if self._server is not None:
                self._server.wait_idle()
        finally:
            self._ending.close()
        # Where the program records too, a test without a call is no line of its file.
        if error is None and lifecycle.discard(self.trajectory, None):
            self.trajectory.status = "completed"
        else:
            lifecycle.finish(self.trajectory, None, error)

    def save(self, *, width: int = 100, paint: Paint | None = None) -> str:
        """Writes the cassette, after the end; returns what differs from what it held before, for people.

        Raises:
            CassetteError: it cannot be written.
        """
        if not isinstance(self._server, RecordingServer):
            return ""
        exchanges = self._server.exchanges
        cassette.save(self._options.paths[0], self.name, self._with_exchanges(exchanges))
        count = of(len(exchanges), "exchange")
        before = [one for found in self._before for one in found.exchanges]
        if not self._before:
            return f"recorded, {count}"
        changed = changes_text(before, exchanges, width=width, paint=paint)
        return f"recorded again, {count}, changed:\n{changed}" if changed else f"recorded again, {count}, as before"

    def _with_exchanges(self, exchanges: Sequence[Exchange]) -> list[Trajectory]:
        """Copies of the trajectories that hold their exchanges: the agent keeps its own as they are."""
        place = {step.call_id or "": index for index, one in enumerate(self._trajectories) for step in one.steps}
        own = self._trajectories.index(self.trajectory)
        shares: list[list[Exchange]] = [[] for _ in self._trajectories]
        late = {exchange.name for exchange in exchanges[self._made_in_test :]}
        for exchange in exchanges:
            shares[place.get(exchange.call_id or "", own)].append(exchange)
        copies = []
        for index, (original, share) in enumerate(zip(self._trajectories, shares, strict=True)):
            if index != own and not (share or original.steps or original.tool_runs):
                continue
            copy = decode(encode(original))
            in_test = sum(one.name not in late for one in share)
            marks = {cassette.TEST: self.name} | ({} if in_test == len(share) else {cassette.IN_TEST: in_test})
            copy.metadata = {**(copy.metadata or {}), **marks}
            copy.exchanges = tuple(share)
            copy.environment = {name: value for name, value in (copy.environment or {}).items() if name in _KEPT}
            copies.append(copy)
        return copies


def _made_in_test(trajectory: Trajectory) -> int:
    number = (trajectory.metadata or {}).get(cassette.IN_TEST)
    return number if isinstance(number, int) else len(trajectory.exchanges)


def _can_load(path: Path, test: str) -> bool:
    try:
        return bool(cassette.load(path, test))
    except cassette.CassetteError:
        return False


def _restore(before: dict[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
