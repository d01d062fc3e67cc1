"""One conversation of a coding agent that writes its messages and answers one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, Protocol

from rollout_trace.data.model import Completion, ErrorInfo, Step, ToolRun
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.importing.fields import Fields
from rollout_trace.importing.imported import Job, Read, each_file
from rollout_trace.importing.inputs import Input
from rollout_trace.importing.steps import REBUILT, Thread, missing_ids
from rollout_trace.wire.tool_results import ToolCalls


class Conversation:
    """The steps and tool runs so far, and the messages, in the shape of ``protocol``, that the next call is sent.

    ``lacks`` is what its steps do not have, for the report; ``parent`` the id of the session that began it.
    """

    def __init__(self, job: Job, name: str, protocol: str, agent: str, lacks: str, parent: str | None = None) -> None:
        self.name, self.agent, self.lacks, self.parent = name, agent, lacks, parent
        self.thread = Thread()
        self.calls = ToolCalls()
        self.steps: list[Step] = []
        self.tool_runs: list[ToolRun] = []
        self.status = "unknown"
        self.environment: dict[str, Any] = {}
        self.metadata: dict[str, Any] = {"imported": {"source": job.source}}
        self.job, self._protocol = job, protocol
        self._no_ids = missing_ids(f"Sessions of {job.source} have no token ids.")
        self.started_at: datetime | None = None
        self.ended_at: datetime | None = None

    def pass_time(self, time: datetime | None) -> None:
        """Notes the time of a line."""
        if time is not None:
            self.started_at, self.ended_at = min(self.started_at or time, time), max(self.ended_at or time, time)

    def set_environment(self, line: Fields, names: Mapping[str, str]) -> None:
        """Notes where the session ran, by what its first lines say. ``names``: ours by those of the line's texts."""
        for name, ours in names.items():
            if (value := line.text(name)) is not None:
                self.environment.setdefault(ours, value)

    def add_step(self, completion: Completion, messages: list[Any], **facts: Any) -> Step:
        """Adds a call that was answered, and the answer as later calls are sent it."""
        step = Step(**self._sent(), completion=completion, token_issue=self._no_ids, **facts)
        self.steps.append(step)
        self.thread.add(*messages)
        self.calls.add(step)
        self.job.report.miss_tokens()
        return step

    def answer(self, completion: Completion, messages: list[Any], **facts: Any) -> Step:
        """As ``add_step``, of a source that decodes the arguments of tools; and counts a usage that is missing."""
        step = self.add_step(completion, messages, **facts)
        self.job.report.miss("usage", step.usage is None)
        self.job.report.note("arguments of tool calls, written as JSON anew", len(completion.tool_calls))
        return step

    def fail(self, error: ErrorInfo, **facts: Any) -> None:
        """Adds a call that failed."""
        self.steps.append(Step(**self._sent(), status="error", error=error, **facts))
        self.status = "failed"

    def _sent(self) -> dict[str, Any]:
        own, at = f"{self.name}.{len(self.steps)}", len(self.steps)
        sent = {"messages": self.thread.span(), "protocol": self._protocol, "metadata": dict(REBUILT)}
        return {"id": own, "call_id": own, "index": at, **sent}

    def run(self, call_id: str | None, result: Any, *, is_error: bool, duration: float | None = None) -> None:
        """Adds what a tool gave."""
        self.tool_runs.append(self.calls.run(call_id, result, is_error=is_error, duration=duration))

    def trajectory(self) -> Trajectory:
        """The session."""
        self.job.report.miss(self.lacks, bool(self.steps))
        self.job.report.miss("rewards")
        own = self.job.unique_id(self.name)
        return Trajectory(
            id=own,
            name=self.agent,
            parent_id=self.parent,
            episode_id=self.parent or own,
            steps=self.steps,
            tool_runs=self.tool_runs,
            status=self.status,
            started_at=self.started_at,
            ended_at=self.ended_at,
            environment=self.environment or None,
            metadata=self.metadata,
        )


class _Session(Protocol):
    talk: Conversation


def conversations(session: Callable[[Input, Job], _Session]) -> Read:
    """Reads files that hold a conversation each; those without one are left out, and counted."""

    def made(source: Input, job: Job) -> Iterator[Trajectory]:
        talk = session(source, job).talk
        if talk.steps or talk.thread.items:
            yield talk.trajectory()
        else:
            job.report.drop("files without a conversation")

    return each_file(made)


def folder_of(source: Input, depth: int) -> str | None:
    """The name of a folder that a file lies in, counted from the inside; None where there is none to look at."""
    parts = [] if source.is_open_file else source.path.replace("\\", "/").split("/")
    return parts[-1 - depth] if len(parts) > depth else None
