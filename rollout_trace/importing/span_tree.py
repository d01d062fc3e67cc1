"""The spans of one trace as trajectories: one for each agent."""

from __future__ import annotations

from rollout_trace.data.model import Step, ToolRun, amend
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.importing.imported import Job
from rollout_trace.importing.span_calls import call_steps, is_own, kind_of, restore, tool_run
from rollout_trace.importing.span_values import Span
from rollout_trace.importing.steps import SharedStores
from rollout_trace.wire.span_names import names_of
from rollout_trace.wire.tool_results import tool_runs_of


def trajectories_of(spans: list[Span], job: Job, name: str) -> list[Trajectory]:
    """The trajectories of one trace: the outermost first. Spans are in any order."""
    tree = _Tree(spans, job)
    made: dict[str | None, Trajectory] = {}
    for agent in tree.agents:
        steps, runs = tree.steps_of(agent, name if agent is None else f"{name}.{agent}")
        if not steps and not runs and agent is None and len(tree.agents) > 1:
            continue
        span = tree.span_of(agent)
        parent = made.get(tree.parent_of(agent)) if agent is not None else None
        times = [step.started_at for step in steps if step.started_at is not None]
        wanted = None if span is None else span.text("rollout_trace.trajectory.id")
        trajectory = Trajectory(
            id=job.unique_id(wanted or (name if not made else f"{name}.{agent}")),
            name=(span and span.text(*names_of("trajectory name"))) or "agent",
            episode_id=None if not made else next(iter(made.values())).episode_id,
            parent_id=None if parent is None else parent.id,
            parent_step_id=None if parent is None else tree.step_before(agent, parent),
            steps=steps,
            tool_runs=runs,
            status="failed" if span is not None and span.error is not None else "completed",
            error=None if span is None else span.error,
            started_at=span.started_at if span is not None and span.started_at else min(times, default=None),
            ended_at=None if span is None else span.ended_at,
            metadata={"imported": {"source": job.source}, **({} if span is None else {"span_id": span.id})},
        )
        if span is not None:
            restore(trajectory, span)
        made[agent] = trajectory
    return _kept(list(made.values()))


def _kept(made: list[Trajectory]) -> list[Trajectory]:
    """Those that hold something, and those that are around one that does."""
    around: set[str | None] = set()
    kept = []
    # Inner ones are behind the outer ones.
    for one in reversed(made):
        if one.steps or one.tool_runs or one.reward is not None or one.id in around:
            around.add(one.parent_id)
            kept.append(one)
    return kept[::-1] or made[:1]


class _Tree:
    """The spans by their ids, and the agent span around each."""

    def __init__(self, spans: list[Span], job: Job) -> None:
        self._job = job
        self._step_ids: set[str] = set()
        self._spans: dict[str, Span] = {}
        for span in sorted(spans, key=_begin):
            if span.id in self._spans:
                job.report.drop("spans with the id of an earlier one of their trace")
            else:
                self._spans[span.id] = span
        self._is_own = any(is_own(span) for span in self._spans.values())
        self._kinds = {span.id: kind_of(span) for span in self._spans.values()}
        self._above: dict[str, str | None] = {}
        """The span directly above each; parents are before their children."""
        for span in self._spans.values():
            self._add_with_those_above(span)
        self._agent_of: dict[str, str | None] = {}
        depths: dict[str, int] = {}
        for one, above in self._above.items():
            is_in_agent = above is not None and self._kinds[above] == "agent"
            self._agent_of[one] = above if above is None or is_in_agent else self._agent_of[above]
            depths[one] = 0 if above is None else depths[above] + 1
        # A framework's span of a call holds that of the client: the innermost is the call.
        self._outer: set[str] = set()
        for one, above in reversed(self._above.items()):
            if above is not None and (self._kinds[one] == "call" or one in self._outer):
                self._outer.add(above)
        self._own: dict[str | None, list[Span]] = {}
        for span in self._spans.values():
            self._own.setdefault(self._agent_of[span.id], []).append(span)
        agents = [span.id for span in self._spans.values() if self._kinds[span.id] == "agent"]
        self.agents: list[str | None] = [None, *sorted(agents, key=depths.__getitem__)]
        """Ids of agent spans, outer ones first; None: what is in no agent."""

    def _add_with_those_above(self, span: Span) -> None:
        """Adds a span behind its parent. One that is above itself is cut off from what is above it."""
        path: list[str] = []
        one: str | None = span.id
        on_path: set[str] = set()
        while one is not None and one in self._spans and one not in self._above and one not in on_path:
            path.append(one)
            on_path.add(one)
            one = self._spans[one].parent_id
        above = one if one in self._above else None
        self._job.report.note("spans that are above themselves, cut off", one in on_path)
        for one in reversed(path):
            self._above[one] = above
            above = one

    def span_of(self, agent: str | None) -> Span | None:
        """The span of an agent; for None, the first one of the trace."""
        if agent is not None:
            return self._spans[agent]
        roots = [span for span in self._spans.values() if self._above[span.id] is None]
        return roots[0] if len(roots) == 1 and self._kinds[roots[0].id] is None else None

    def parent_of(self, agent: str) -> str | None:
        """The agent in which an agent's span is; None for the outermost."""
        return self._agent_of[agent]

    def step_before(self, agent: str | None, parent: Trajectory) -> str | None:
        """The parent's last step that had begun before an agent's span."""
        began = self._spans[agent].started_at if agent is not None else None
        before = [step for step in parent.steps if step.started_at and began and step.started_at <= began]
        return before[-1].id if before else None

    def steps_of(self, agent: str | None, name: str) -> tuple[list[Step], list[ToolRun]]:
        """The steps and tool runs that are an agent's own."""
        own = self._own.get(agent, [])
        stores = SharedStores()
        steps: list[Step] = []
        for span in own:
            if self._kinds[span.id] != "call":
                continue
            if span.id in self._outer:
                self._job.report.note("spans of calls around the client's own, left out")
                continue
            made = call_steps(span, stores, self._job, f"{name}.{span.id}")
            if is_own(span):
                self._restore(span, made, steps)
            steps += made
        stores.finish()
        for at, step in enumerate(steps):
            amend(step, index=at)
        callers = {
            call.id: step.id for step in steps if step.completion for call in step.completion.tool_calls if call.id
        }
        runs = [tool_run(span, callers, of_own=self._is_own) for span in own if self._kinds[span.id] == "tool"]
        seen = {run.tool_call_id for run in runs}
        return steps, [*runs, *(run for run in tool_runs_of(steps) if run.tool_call_id not in seen)]

    def _restore(self, span: Span, made: list[Step], before: list[Step]) -> None:
        """Restores what of a step of our export stands on other spans, and its id where it is one of its own."""
        own = span.text("rollout_trace.step.id")
        if own is not None and own not in self._step_ids and len(made) == 1:
            self._step_ids.add(own)
            amend(made[0], id=own)
        for step in made:
            # The usage of a call is on the span of its first choice.
            first = next((one for one in reversed(before) if one.call_id == step.call_id and one.usage), None)
            if step.usage is None and step.choice and first is not None:
                amend(step, usage=first.usage)


def _begin(span: Span) -> tuple[bool, float, int]:
    return span.started_at is None, span.started_at.timestamp() if span.started_at else 0.0, span.order
