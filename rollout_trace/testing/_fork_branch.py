"""The trajectories of a fork: which recorded calls answer their own, and which recorded sub-agent each of them is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rollout_trace.data.model import ToolRun
from rollout_trace.data.trajectory import ForkedFrom, Trajectory

from ._differences import Change, changes
from .recorded_answers import answers_of


class Branch:
    """A recorded trajectory whose first ``step`` calls (None: all) answer those of a new one.

    Takes those that were opened inside it out of ``others``, which are by the id of their parent. Raises ValueError: a
    call has no answer that can be given again.
    """

    def __init__(self, origin: Trajectory, step: int | None, others: dict[str, list[Trajectory]]) -> None:
        answers = answers_of(origin, step)
        self.origin = origin
        self.answers = answers if step is None else answers[:step]
        self.left = list(range(len(self.answers)))
        """The numbers of the calls that were not asked for yet."""
        self.given: dict[str, int] = {}
        """The number of the answer that each call of the new trajectory was given, by the id of the call."""
        self.trajectory: Trajectory | None = None
        """The new one; None until it is opened."""
        self.tool_runs = list(origin.tool_runs)
        """Those whose results were not given yet."""
        self._later = answers[len(self.answers) :]
        before = {None, *(one.id for answer in self.answers for one in answer.steps)}
        opened = sorted(others.pop(origin.id, ()), key=lambda one: (one.started_at is None, one.started_at))
        self.children = [Branch(one, None, others) for one in opened if one.parent_step_id in before]
        """Of the trajectories that were opened inside it before the step."""

    def walk(self) -> Iterator[Branch]:
        """This one, and those inside it at any depth."""
        yield self
        for child in self.children:
            yield from child.walk()

    def begin(self, trajectory: Trajectory) -> None:
        """Says which trajectory the calls of this one answer."""
        self.trajectory = trajectory
        self.note()

    def note(self, difference: str | None = None) -> None:
        """Notes in the new trajectory, while it is open, how many calls were answered, and where it differed."""
        answered = len(self.answers) - len(self.left)
        if self.trajectory is not None and self.trajectory.is_open:
            self.trajectory.forked_from = ForkedFrom(id=self.origin.id, step=answered, difference=difference)

    def child_for(self, trajectory: Trajectory) -> Branch | None:
        """The recorded trajectory for one that was opened inside this one: the next of its name, or None."""
        return next(
            (one for one in self.children if one.trajectory is None and one.origin.name == trajectory.name), None
        )

    def exchange(self, child: Branch, protocol: str, now: Any) -> Branch:
        """The recorded trajectory for one whose first call is known: sub-agents may be opened in another order."""
        if child.given or not child.answers or not any(child.differences(0, protocol, now)):
            return child
        for other in self.children:
            if other.given or other.origin.name != child.origin.name or not other.answers:
                continue
            if not any(other.differences(0, protocol, now)):
                one, two = child.trajectory, other.trajectory
                assert one is not None
                other.begin(one)
                child.trajectory = None
                if two is not None:
                    child.begin(two)
                return other
        return child

    def number(self, protocol: str, now: Any) -> int | None:
        """The number of the recorded call that a request repeats: of calls that overlapped, it may be any."""
        return next((one for one in self.left if not any(self.differences(one, protocol, now))), None)

    def is_later(self, protocol: str, now: Any) -> bool:
        """Whether a request repeats a call behind the step, which was recorded at the same time as those before it."""
        return any(one.protocol == protocol and not any(changes(one.asked, now)) for one in self._later)

    def differences(self, number: int, protocol: str, now: Any) -> Iterator[Change]:
        """Returns where a request differs from a recorded one."""
        recorded = self.answers[number]
        if protocol != recorded.protocol:
            return iter([Change("protocol", recorded.protocol, protocol)])
        return changes(recorded.asked, now)

    def tool_run(self, name: str, tool_call_id: str | None) -> ToolRun | None:
        """Takes the next recorded run of a tool; None where there is none."""
        for run in self.tool_runs:
            if run.name == name and tool_call_id in (None, run.tool_call_id):
                self.tool_runs.remove(run)
                return run
        return None


def by_parent(trajectories: Iterable[Trajectory]) -> dict[str, list[Trajectory]]:
    """Trajectories by the id of their parent."""
    found: dict[str, list[Trajectory]] = {}
    for one in trajectories:
        if one.parent_id is not None:
            found.setdefault(one.parent_id, []).append(one)
    return found
