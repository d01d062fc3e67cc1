"""One conversation of a coding agent that writes its messages and answers one after another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from rollout_trace.data.model import Completion, ErrorInfo, Step, ToolRun
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.importing.imported import each_file
from rollout_trace.importing.steps import REBUILT, Thread, missing_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from rollout_trace.importing.imported import Job, Read
    from rollout_trace.importing.inputs import Input


class Conversation:
    """The steps and tool runs so far, and the messages that the next call is sent.

    Args:
        job: the import.
        name: id of the session.
        protocol: whose shape the messages have.
        agent: its name.
        lacks: what its steps do not have, for the report.
        parent: id of the session that began it.
    """

    def __init__(self, job: Job, name: str, protocol: str, agent: str, lacks: str, parent: str | None = None) -> None:
        self.name = name
        self._agent, self._lacks, self._parent = agent, lacks, parent
        self.thread = Thread()
        self.steps: list[Step] = []
        self.tool_runs: list[ToolRun] = []
        self.status = "unknown"
        self.environment: dict[str, Any] = {}
        self._job, self._protocol = job, protocol
        self._no_ids = missing_ids(f"Sessions of {job.source} have no token ids.")
        self._callers: dict[str, tuple[Step, Any]] = {}
        self._times: list[datetime] = []

    def pass_time(self, time: datetime | None) -> None:
        """Notes the time of a line."""
        if time is not None:
            self._times = [min([time, *self._times]), max([time, *self._times])]

    def answer(self, completion: Completion, messages: list[Any], **facts: Any) -> Step:
        """Adds a call that was answered, and the answer as later calls are sent it."""
        step = Step(**self._sent(), completion=completion, token_issue=self._no_ids, **facts)
        self.steps.append(step)
        self.thread.add(*messages)
        for call in completion.tool_calls:
            if call.id is not None:
                self._callers[call.id] = step, call
        self._job.report.miss_tokens()
        self._job.report.miss("usage", step.usage is None)
        self._job.report.note("arguments of tool calls, written as JSON anew", len(completion.tool_calls))
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
        step, call = self._callers.get(call_id or "", (None, None))
        self.tool_runs.append(
            ToolRun(
                tool_call_id=call_id,
                name=None if call is None else call.name,
                arguments=None if call is None else call.arguments,
                result=result,
                error=ErrorInfo(type="ToolError", message=str(result)[:2000]) if is_error else None,
                duration=duration,
                step_id=None if step is None else step.id,
            )
        )

    def trajectory(self) -> Trajectory:
        """The session."""
        self._job.report.miss(self._lacks, bool(self.steps))
        self._job.report.miss("rewards")
        own = self._job.unique_id(self.name)
        return Trajectory(
            id=own,
            name=self._agent,
            parent_id=self._parent,
            episode_id=self._parent or own,
            steps=self.steps,
            tool_runs=self.tool_runs,
            status=self.status,
            started_at=min(self._times, default=None),
            ended_at=max(self._times, default=None),
            environment=self.environment or None,
            metadata={"imported": {"source": self._job.source}},
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
