"""The spans of one trace as trajectories: one for each agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollout_trace.data.model import Step, Task, ToolRun, amend
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.importing.fields import is_finite
from rollout_trace.importing.span_steps import call_steps, kind_of, tool_run
from rollout_trace.importing.steps import SharedStores
from rollout_trace.importing.tool_results import tool_runs_of

if TYPE_CHECKING:
    from rollout_trace.importing.imported import Job
    from rollout_trace.importing.span_values import Span


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
        trajectory = Trajectory(
            id=job.unique_id(name if not made else f"{name}.{agent}"),
            name=(span and span.text("gen_ai.agent.name", "agent.name", "traceloop.entity.name")) or "agent",
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
            _add_own_facts(trajectory, span)
        made[agent] = trajectory
    return [one for one in made.values() if one.steps or len(made) == 1]


def _add_own_facts(trajectory: Trajectory, span: Span) -> None:
    """Restores what our own export keeps of a trajectory on the span of its agent."""
    reward, index = span.attributes.get("rollout_trace.reward"), span.attributes.get("rollout_trace.rollout_index")
    trajectory.reward = float(reward) if is_finite(reward) else None
    trajectory.group_id = span.text("rollout_trace.group_id")
    trajectory.rollout_index = index if type(index) is int and index >= 0 else None
    task = span.text("rollout_trace.task.id")
    trajectory.task = None if task is None else Task(id=task)


class _Tree:
    """The spans by their ids, and the agent span above each."""

    def __init__(self, spans: list[Span], job: Job) -> None:
        self._job = job
        self._spans: dict[str, Span] = {}
        for span in sorted(spans, key=_begin):
            if span.id in self._spans:
                job.report.drop("spans with the id of an earlier one of their trace")
            else:
                self._spans[span.id] = span
        self._kinds = {span.id: kind_of(span) for span in self._spans.values()}
        self._above = {span.id: self._ancestors(span) for span in self._spans.values()}
        # A framework's span of a call holds that of the client: the innermost is the call.
        self._outer = {
            one for span in self._spans.values() if self._kinds[span.id] == "call" for one in self._above[span.id]
        }
        self._own: dict[str | None, list[Span]] = {}
        for span in self._spans.values():
            self._own.setdefault(self._agent_of(span), []).append(span)
        agents = [span.id for span in self._spans.values() if self._kinds[span.id] == "agent"]
        self.agents: list[str | None] = [None, *sorted(agents, key=lambda one: len(self._above[one]))]
        """Ids of agent spans, outer ones first; None: what is in no agent."""

    def _ancestors(self, span: Span) -> list[str]:
        """The ids of the spans above, the nearest first. One that is above itself is cut off."""
        found: list[str] = []
        seen = {span.id}
        parent = span.parent_id
        while parent is not None and parent in self._spans and parent not in seen:
            seen.add(parent)
            found.append(parent)
            parent = self._spans[parent].parent_id
        if parent in seen:
            self._job.report.note("spans that are above themselves, cut off")
        return found

    def span_of(self, agent: str | None) -> Span | None:
        """The span of an agent; for None, the first one of the trace."""
        if agent is not None:
            return self._spans[agent]
        roots = [span for span in self._spans.values() if not self._above[span.id]]
        return roots[0] if len(roots) == 1 and self._kinds[roots[0].id] is None else None

    def parent_of(self, agent: str) -> str | None:
        """The agent in which an agent's span is; None for the outermost."""
        return next((one for one in self._above[agent] if self._kinds[one] == "agent"), None)

    def step_before(self, agent: str | None, parent: Trajectory) -> str | None:
        """The parent's last step that had begun before an agent's span."""
        began = self._spans[agent].started_at if agent is not None else None
        before = [step for step in parent.steps if step.started_at and began and step.started_at <= began]
        return before[-1].id if before else None

    def steps_of(self, agent: str | None, name: str) -> tuple[list[Step], list[ToolRun]]:
        """The steps and tool runs that are an agent's own."""
        own = self._own.get(agent, [])
        stores, steps = SharedStores(), []
        for span in own:
            if self._kinds[span.id] != "call":
                continue
            if span.id in self._outer:
                self._job.report.note("spans of calls around the client's own, left out")
                continue
            steps += call_steps(span, stores, self._job, f"{name}.{span.id}")
        stores.finish()
        for at, step in enumerate(steps):
            amend(step, index=at)
        callers = {
            call.id: step.id for step in steps if step.completion for call in step.completion.tool_calls if call.id
        }
        runs = [tool_run(span, callers) for span in own if self._kinds[span.id] == "tool"]
        seen = {run.tool_call_id for run in runs}
        return steps, [*runs, *(run for run in tool_runs_of(steps) if run.tool_call_id not in seen)]

    def _agent_of(self, span: Span) -> str | None:
        return next((one for one in self._above[span.id] if self._kinds[one] == "agent"), None)


def _begin(span: Span) -> tuple[bool, float, int]:
    return span.started_at is None, span.started_at.timestamp() if span.started_at else 0.0, span.order
