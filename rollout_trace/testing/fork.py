"""Goes on from a recorded step: the calls before it are answered from the recording, what follows goes to the model.

The answers come from a server on 127.0.0.1 of this branch alone, to which only those requests of the agent go that are
answered from the recording. All others are left as they are: they go straight to the model.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rollout_trace import guard
from rollout_trace.clients import recorder
from rollout_trace.data.trajectory import ForkedFrom, Trajectory
from rollout_trace.data.user_values import brief, position
from rollout_trace.errors import ForkDifference
from rollout_trace.process.redirect import Redirected, redirect
from rollout_trace.record import scope
from rollout_trace.record.context import TrajectoryScope
from rollout_trace.wire.protocols import protocol_of_path, protocol_of_request

from ._differences import Change, changes, lines_of, named
from .recorded_answers import ANSWER_HEADER, REFUSED, AnswerServer, RecordedAnswer, answers_of, asked_now

if TYPE_CHECKING:
    from types import TracebackType

    from rollout_trace.data.model import ToolRun

OnDifference: TypeAlias = Literal["raise", "live"]
Tools: TypeAlias = Literal["run", "recorded"]


def fork(trajectory: Trajectory, step: int, *, on_difference: OnDifference = "raise", tools: Tools = "run") -> Fork:
    """Goes on from a step of a recorded trajectory, in a new one: ``with rt.fork(trajectory, step=12) as branch:``.

    The agent runs from its beginning inside the block. Its first ``step`` model calls are answered from the recording,
    and no request of theirs leaves this machine: with the bytes that were recorded, if the trajectory has them
    (``keep_bytes=True``, or a cassette), else with an equal answer in the same protocol. The calls after them go to the
    model. What the agent asks is compared with what was recorded: messages, tools, model and sampling.

    ``branch`` is the new trajectory, a sibling of the recorded one in its group; ``branch.forked_from`` names its
    origin. The steps that were answered from the recording have the status ``cached``: nothing trains on them again.

    Args:
        trajectory: the recorded one. Its own calls are answered; those of trajectories that were opened inside it are
            not, and go to the model.
        step: number of its model calls that are answered.
        on_difference: ``raise``: a call that differs is refused, and the block raises ForkDifference with the first
            difference. ``live``: that call and all after it go to the model, and ``branch.forked_from`` has the
            difference.
        tools: ``run``: tools run again. ``recorded``: ``rt.recorded_tool`` gives their recorded results.

    Raises:
        TypeError, ValueError: there is no such step, or a call before it has no answer to give again.
    """
    if not isinstance(trajectory, Trajectory):
        raise TypeError(f"rt.fork() takes a trajectory, such as rt.read() yields; got {brief(trajectory)}.")
    for name, value, known in (
        ("on_difference", on_difference, ("raise", "live")),
        ("tools", tools, ("run", "recorded")),
    ):
        if value not in known:
            raise ValueError(f"{name} is {brief(value)}; give {known[0]!r} or {known[1]!r}.")
    step = position(step, "step")
    return Fork(trajectory, answers_of(trajectory, step), step, on_difference, tools)


class Fork:
    """What ``rt.fork()`` gives: ``with`` or ``async with`` it, once."""

    def __init__(
        self,
        origin: Trajectory,
        answers: Sequence[RecordedAnswer],
        step: int,
        on_difference: OnDifference,
        tools: Tools,
    ) -> None:
        self._origin = origin
        self._answers, self._later = list(answers[:step]), list(answers[step:])
        self._goes_live = on_difference == "live"
        self._left = list(range(len(self._answers)))
        self._given: dict[str, int] = {}
        """The number of the answer that each call of the agent was given, by the id of the call."""
        self._difference: str | None = None
        self._lock = threading.Lock()
        self._tool_runs = list(origin.tool_runs) if tools == "recorded" else None
        self._branch: Trajectory | None = None
        self._server: AnswerServer | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Trajectory:
        if self._branch is not None:
            raise RuntimeError("this fork was entered before: make one for each run, rt.fork(trajectory, step).")
        settings = {
            "name": self._origin.name, "task": self._origin.task, "group_id": self._origin.group_id,
            "rollout_index": None, "metadata": None,
        }  # fmt: skip
        with ExitStack() as stack:
            branch = stack.enter_context(TrajectoryScope(settings))
            branch.forked_from = ForkedFrom(id=self._origin.id, step=len(self._answers))
            self._branch = branch
            self._server = stack.enter_context(AnswerServer(self._answers))
            stack.enter_context(redirect(self._route))
            _open.append(self)
            stack.callback(_open.remove, self)
            self._stack = stack.pop_all()
        return branch

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        difference = self._ended()
        # A cancelled task, and Ctrl-C, stay what they are.
        if difference is None or not isinstance(error, Exception | None):
            self._stack.__exit__(kind, error, traceback)
            return
        raised = ForkDifference(difference)
        self._stack.__exit__(ForkDifference, raised, traceback)
        raise raised from error

    async def __aenter__(self) -> Trajectory:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)

    def _ended(self) -> str | None:
        """Says how far the recording was used, and returns what the block fails with, if it does."""
        assert self._branch is not None
        answered, left = len(self._answers) - len(self._left), len(self._left)
        found = self._branch.forked_from
        if left and found is not None:
            self._branch.forked_from = ForkedFrom(id=found.id, step=answered, difference=found.difference)
        if self._difference is not None:
            return None if self._goes_live else self._difference
        live = len({step.call_id for step in self._branch.steps} - set(self._given)) if left else 0
        if live:
            return (
                f"{live} calls went to the model, and {left} of {len(self._answers)} recorded ones were not asked for: "
                "the calls were made by a transport that rt.fork cannot answer."
            )
        if left:
            guard.warn(f"the agent ended after {answered} of {len(self._answers)} recorded calls.")
        return None

    def tool_run(self, name: str, tool_call_id: str | None) -> ToolRun | None:
        """Takes the next recorded run of a tool; None where there is none, or tools run again."""
        with self._lock:
            for run in self._tool_runs or ():
                if run.name == name and tool_call_id in (None, run.tool_call_id):
                    assert self._tool_runs is not None
                    self._tool_runs.remove(run)
                    return run
        return None

    @property
    def is_here(self) -> bool:
        """Whether this context is inside the block."""
        return self._branch is not None and scope.here() is self._branch

    def _route(self, method: str, url: str, body: bytes | None) -> Redirected | None:
        """Where a request goes: to the recorded answers, or None, where it was going."""
        assert self._server is not None
        path = "/" + url.partition("://")[2].partition("/")[2]
        if not self.is_here or (protocol := _protocol(method, path, body)) is None:
            return None
        call = recorder.current.get()
        with self._lock:
            try:
                number = self._number(path, body, protocol, None if call is None else call.id)
            except Exception as error:
                # Whatever is wrong with a request, it must not reach the model.
                number = self._differs(self._left[:1], f"it cannot be compared: {guard.describe(error)}")
        if number is None:
            return None
        if call is not None:
            call.is_replayed = number != REFUSED
        return Redirected(self._server.url + path, {ANSWER_HEADER: str(number)})

    def _number(self, path: str, body: bytes | None, protocol: str, call_id: str | None) -> int | str | None:
        """The number of the answer to a request; None where it goes to the model, ``refused`` where it differs."""
        if call_id is not None and call_id in self._given:
            return self._given[call_id]  # An attempt of a call that was answered before.
        if self._difference is not None:
            return None if self._goes_live else REFUSED
        if not self._left:
            return None
        if body is None:
            return self._differs(self._left[:1], "its body is a stream, which cannot be compared")
        now = asked_now(protocol, path, body)
        # Of calls that overlapped, the next one may be another.
        number = next((one for one in self._left if not any(self._differences(one, protocol, now))), None)
        if number is None:
            if any(one.protocol == protocol and not any(changes(one.asked, now)) for one in self._later):
                return None  # Recorded at the same time as those before the step.
            found = list(self._differences(self._left[0], protocol, now))
            return self._differs(self._left[:1], f"it differs from the recorded one in {named(found)}", found)
        self._left.remove(number)
        if call_id is not None:
            self._given[call_id] = number
        return number

    def _differences(self, number: int, protocol: str, now: Any) -> Iterator[Change]:
        recorded = self._answers[number]
        if protocol != recorded.protocol:
            return iter([Change("protocol", recorded.protocol, protocol)])
        return changes(recorded.asked, now)

    def _differs(self, awaited: Sequence[int], what: str, found: Sequence[Change] = ()) -> str | None:
        """Notes the first difference; returns where the request goes."""
        place = f"call {awaited[0] + 1 if awaited else '?'} of {len(self._answers)}: {what}"
        self._difference = "\n".join([f"{place}{':' if found else '.'}", *lines_of(found)])
        assert self._branch is not None
        assert self._server is not None
        if not self._goes_live:
            self._server.difference = self._difference
            return REFUSED
        answered = len(self._answers) - len(self._left)
        self._branch.forked_from = ForkedFrom(id=self._origin.id, step=answered, difference=self._difference)
        guard.warn(f"{place}; this call and those after it go to the model.")
        return None


def _protocol(method: str, path: str, body: bytes | None) -> str | None:
    """The protocol of a request that generates; by its path alone where its body is a stream."""
    return protocol_of_path(method, path) if body is None else protocol_of_request(method, path, body)


_open: list[Fork] = []
"""Forks whose blocks are open."""


def recorded_tool(name: str, *, tool_call_id: str | None = None) -> Any:
    """Gives the recorded result of a tool, inside ``rt.fork(..., tools="recorded")``: in recorded order, each once.

    Args:
        name: of the tool.
        tool_call_id: of the run; None: the next recorded run of that tool.

    Raises:
        LookupError: there is no (further) recorded run of it, or this is not inside such a block: run the tool.
    """
    inside = next((one for one in reversed(_open) if one.is_here), None)
    run = None if inside is None else inside.tool_run(name, tool_call_id)
    if run is None:
        what = "this is outside of rt.fork(..., tools='recorded')" if inside is None else "no such run is recorded"
        raise LookupError(f"no recorded result of the tool {name!r}: {what}. Run the tool.")
    return run.result
