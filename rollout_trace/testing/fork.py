"""Goes on from a recorded step: the calls before it are answered from the recording, what follows goes to the model.

The answers come from a server on 127.0.0.1 of this fork alone, to which only those requests of the agent go that are
answered from the recording. All others are left as they are: they go straight to the model.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Literal, TypeAlias

from rollout_trace import guard
from rollout_trace.clients import recorder
from rollout_trace.data.model import ToolRun
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.data.user_values import brief, position
from rollout_trace.errors import ForkDifference
from rollout_trace.process.redirect import Redirected, redirect
from rollout_trace.record import context, lifecycle
from rollout_trace.record.context import TrajectoryScope
from rollout_trace.wire.protocols import protocol_of_path, protocol_of_request

from ._differences import Change, lines_of, named
from ._fork_branch import Branch, by_parent
from .recorded_answers import REFUSED, AnswerServer, asked_now

OnDifference: TypeAlias = Literal["raise", "live"]
Tools: TypeAlias = Literal["run", "recorded"]


def fork(
    trajectory: Trajectory,
    step: int,
    *,
    on_difference: OnDifference = "raise",
    tools: Tools = "run",
    children: Iterable[Trajectory] | None = None,
) -> Fork:
    """Continues a recorded trajectory from one of its steps: ``with rt.fork(trajectory, step=12) as branch:``.

    The agent runs from its beginning inside the block. Its first ``step`` model calls are answered from the recording,
    and their requests do not leave this machine. They get the recorded bytes, if the trajectory has them
    (``keep_bytes=True``, or a cassette), otherwise with an equal answer in the same protocol. Later calls go to the
    model. The agent's requests are compared with the recorded ones: messages, tools, model and sampling.

    ``branch`` is the new trajectory, a sibling of the recorded one in its group; ``branch.forked_from`` names its
    origin. Steps answered from the recording have the status ``cached``, so that they are not trained on again.

    Args:
        trajectory: the recorded trajectory.
        step: number of model calls to answer from the recording.
        on_difference: ``raise``: a call that differs is rejected, and the block raises ForkDifference with the first
            difference. ``live``: this call and all later ones go to the model, and ``branch.forked_from`` has the
            difference.
        tools: ``run``: tools run again. ``recorded``: ``rt.recorded_tool`` gives their recorded results.
        children: the trajectories of its sub-agents, such as ``rt.read(path)`` of their file; others among them are
            ignored. All calls of sub-agents opened before the step are answered too. None: calls of sub-agents go to
            the model.

    Raises:
        TypeError, ValueError: there is no such step, or a call before it has no answer to replay.
    """
    if not isinstance(trajectory, Trajectory):
        raise TypeError(f"rt.fork() takes a trajectory, such as rt.read() yields; got {brief(trajectory)}.")
    for name, value, known in (
        ("on_difference", on_difference, ("raise", "live")),
        ("tools", tools, ("run", "recorded")),
    ):
        if value not in known:
            raise ValueError(f"{name} is {brief(value)}; give {known[0]!r} or {known[1]!r}.")
    root = Branch(trajectory, position(step, "step"), by_parent(children or ()))
    return Fork(root, on_difference, tools, has_children=children is not None)


class Fork:
    """The result of ``rt.fork()``, for one ``with`` or ``async with`` block."""

    def __init__(self, root: Branch, on_difference: OnDifference, tools: Tools, *, has_children: bool) -> None:
        self.root = root
        self.difference: str | None = None
        """The first one."""
        self.goes_live = on_difference == "live"
        self._gives_tools = tools == "recorded"
        self._has_children = has_children
        every = list(root.walk())
        self._answers = [answer for branch in every for answer in branch.answers]
        self._begins = {id(branch): sum(len(one.answers) for one in every[:at]) for at, branch in enumerate(every)}
        """Number of the first answer of each branch among all."""
        # Reentrant: a fork notes a difference in its trajectory, whose journal may have the next one opened.
        self._lock = threading.RLock()
        self._branches: dict[str, Branch] = {}
        """Those whose calls are answered, by the id of the new trajectory."""
        self._foreign: dict[str, str] = {}
        """Names of trajectories that were opened inside those, and were not recorded, by their ids."""
        self._server: AnswerServer | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Trajectory:
        origin = self.root.origin
        settings = {
            "name": origin.name, "task": origin.task, "group_id": origin.group_id,
            "rollout_index": None, "metadata": None,
        }  # fmt: skip
        with ExitStack() as stack:
            stack.enter_context(self.answering())
            self.begin(branch := stack.enter_context(TrajectoryScope(settings)))
            self._stack = stack.pop_all()
        return branch

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Answers what its trajectories ask."""
        if self._server is not None:
            raise RuntimeError("this fork was entered before: make one for each run, rt.fork(trajectory, step).")
        with AnswerServer(self._answers) as self._server, redirect(self._route):
            _open.append(self)
            lifecycle.when_opened.append(self._opened)
            try:
                yield
            finally:
                lifecycle.when_opened.remove(self._opened)
                _open.remove(self)

    def begin(self, branch: Trajectory) -> None:
        """Begins with the trajectory that continues the recorded one."""
        self.root.begin(branch)
        self._branches[branch.id] = self.root

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        difference = self.ended()
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

    def ended(self) -> str | None:
        """Says how far the recording was used, and returns what the run fails with, if it does."""
        root, left = self.root, len(self.root.left)
        branch = root.trajectory
        assert branch is not None
        if self.difference is not None:
            return None if self.goes_live else self.difference
        live = len({step.call_id for step in branch.steps} - set(root.given)) if left else 0
        if live:
            return (
                f"{live} calls went to the model, and {left} of {len(root.answers)} recorded ones were not asked for: "
                "the calls were made by a transport that rt.fork cannot answer."
            )
        if left:
            guard.warn(f"the agent ended after {len(root.answers) - left} of {len(root.answers)} recorded calls.")
        return None

    def tool_run(self, name: str, tool_call_id: str | None) -> ToolRun | None:
        """Takes the next recorded run of a tool; None where there is none, or tools run again."""
        with self._lock:
            branch = self.branch_here()
            return branch.tool_run(name, tool_call_id) if self._gives_tools and branch is not None else None

    def branch_here(self) -> Branch | None:
        """The recorded trajectory that this context goes on from; None where it is not in this fork."""
        here = context.current()
        return None if here is None else self._branches.get(here.id)

    def _opened(self, trajectory: Trajectory) -> None:
        """Finds the recorded trajectory of one that was opened inside this fork."""
        with self._lock:
            parent = self._branches.get(trajectory.parent_id or "")
            child = None if parent is None else parent.child_for(trajectory)
            if child is not None:
                child.begin(trajectory)
                self._branches[trajectory.id] = child
            elif parent is not None or trajectory.parent_id in self._foreign:
                self._foreign[trajectory.id] = trajectory.name

    def _route(self, method: str, url: str, body: bytes | None) -> Redirected | None:
        """Returns where to send a request: to the recorded answers, or None for its own address."""
        assert self._server is not None
        path = "/" + url.partition("://")[2].partition("/")[2]
        here = context.current()
        # By the path alone where the body is a stream.
        protocol = protocol_of_path(method, path) if body is None else protocol_of_request(method, path, body)
        if here is None or protocol is None:
            return None
        call = recorder.current.get()
        with self._lock:
            try:
                number = self._answer(here, path, body, protocol, None if call is None else call.id)
            except Exception as error:
                # Whatever is wrong with a request, it must not reach the model.
                number = self._differs(self.root, f"it cannot be compared: {guard.describe(error)}")
        if number is None:
            return None
        if call is not None:
            call.is_replayed = number != REFUSED
        return Redirected(self._server.url + path, self._server.headers(number))

    def _answer(
        self, here: Trajectory, path: str, body: bytes | None, protocol: str, call_id: str | None
    ) -> int | str | None:
        """The number of the answer to a request; None where it goes to the model, ``refused`` where it differs."""
        branch = self._branches.get(here.id)
        if branch is None:
            return self._answer_other(here)
        if call_id is not None and call_id in branch.given:
            # An attempt of a call that was answered before.
            return self._begins[id(branch)] + branch.given[call_id]
        if self.difference is not None:
            return None if self.goes_live else REFUSED
        if not branch.left and branch is self.root:
            return None
        if body is None:
            return self._differs(branch, "its body is a stream, which cannot be compared")
        now = asked_now(protocol, path, body)
        branch = self._exchanged(branch, here, protocol, now)
        number = branch.number(protocol, now)
        if number is None:
            if branch.is_later(protocol, now):
                return None
            if not branch.left:
                return self._differs(branch, "the recorded sub-agent made no further one")
            found = list(branch.differences(branch.left[0], protocol, now))
            return self._differs(branch, f"it differs from the recorded one in {named(found)}", found)
        branch.left.remove(number)
        if call_id is not None:
            branch.given[call_id] = number
        branch.note()
        return self._begins[id(branch)] + number

    def _exchanged(self, branch: Branch, here: Trajectory, protocol: str, now: Any) -> Branch:
        """The branch of a trajectory, once its first call is known."""
        parent = self._branches.get(here.parent_id or "")
        if branch is self.root or parent is None:
            return branch
        found = parent.exchange(branch, protocol, now)
        for one in (branch, found):
            if one.trajectory is not None:
                self._branches[one.trajectory.id] = one
        return found

    def _answer_other(self, here: Trajectory) -> str | None:
        """Answers a request made in a trajectory that was not recorded."""
        name = self._foreign.get(here.id)
        if name is None:
            return None
        if self.difference is not None:
            return None if self.goes_live else REFUSED
        if self._has_children and self.root.left:
            return self._differs(self.root, f"it was made by a sub-agent {name!r}, which the recorded run had not")
        if not self._has_children:
            guard.warn_once(
                f"fork-child:{name}",
                f"the calls of the sub-agent {name!r} go to the model: rt.fork(..., children=rt.read(path)) answers "
                "those that were recorded.",
            )
        return None

    def _differs(self, branch: Branch, what: str, found: Sequence[Change] = ()) -> str | None:
        """Notes the first difference; returns where the request goes."""
        of_child = "" if branch is self.root else f" of the sub-agent {branch.origin.name!r}"
        at = branch.left[0] + 1 if branch.left else len(branch.answers) + 1 if of_child else "?"
        place = f"call {at} of {len(branch.answers)}{of_child}: {what}"
        self.difference = "\n".join([f"{place}{':' if found else '.'}", *lines_of(found)])
        assert self._server is not None
        self._server.difference = self.difference
        for one in {id(branch): branch, id(self.root): self.root}.values():
            one.note(self.difference)
        if not self.goes_live:
            return REFUSED
        guard.warn(f"{place}; this call and those after it go to the model.")
        return None


_open: list[Fork] = []
"""Forks whose blocks are open."""


def recorded_tool(name: str, *, tool_call_id: str | None = None) -> Any:
    """Returns a tool's recorded result, inside ``rt.fork(..., tools="recorded")``: in recorded order, each once.

    Args:
        name: name of the tool.
        tool_call_id: id of the recorded tool call; None: the next recorded run of that tool.

    Raises:
        LookupError: there is no (further) recorded run of it, or the call is outside such a block. Run the tool then.
    """
    inside = next((one for one in reversed(_open) if one.branch_here() is not None), None)
    run = None if inside is None else inside.tool_run(name, tool_call_id)
    if run is None:
        what = "this is outside of rt.fork(..., tools='recorded')" if inside is None else "no such run is recorded"
        raise LookupError(f"no recorded result of the tool {name!r}: {what}. Run the tool.")
    return run.result
