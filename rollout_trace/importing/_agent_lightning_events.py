"""Events of Agent-lightning 1.0: one for each call of its gateway, and for each reward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rollout_trace.data.model import Step, amend
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.importing.exchanges import exchange_steps, protocol_of
from rollout_trace.importing.steps import number, policy_version
from rollout_trace.importing.tool_results import tool_runs_of
from rollout_trace.wire.steps import Stores

if TYPE_CHECKING:
    from rollout_trace.importing.fields import Fields
    from rollout_trace.importing.imported import Job


class Events:
    """Events, by rollout and attempt, in the order of the file."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._rollouts: dict[str, dict[str, list[Fields]]] = {}

    def add(self, record: Fields) -> None:
        """Adds an event."""
        attempts = self._rollouts.setdefault(record.require_name("rollout_id"), {})
        attempts.setdefault(record.name("attempt_id") or "0", []).append(record)

    def trajectories(self) -> Iterator[Trajectory]:
        """The rollouts: of each the last attempt."""
        for rollout, attempts in self._rollouts.items():
            self._job.report.drop("earlier attempts of rollouts", len(attempts) - 1)
            attempt = list(attempts)[-1]
            yield self._trajectory(rollout, attempt, attempts[attempt])

    def _trajectory(self, rollout: str, attempt: str, events: list[Fields]) -> Trajectory:
        stores, name = Stores(), self._job.unique_id(rollout)
        steps: list[Step] = []
        reward, metadata = None, {"imported": {"source": "agent_lightning"}, "attempt_id": attempt}
        for event in events:
            kind, data = event.text("event_type"), event.object("data")
            if data is None:
                event.wrong("data", "an object")
            elif kind == "model_request":
                steps += self._call(event, data, stores, f"{name}.{len(steps)}")
            elif kind == "reward":
                reward = self._reward(data, reward)
            else:
                self._job.report.drop(f"events of the kind {str(kind)[:40]}")
        stores.finish()
        number(steps, self._job.report)
        self._job.report.miss("rewards", reward is None)
        times = [time for event in events if (time := event.time("timestamp")) is not None]
        return Trajectory(
            id=name,
            steps=steps,
            tool_runs=tool_runs_of(steps),
            reward=reward,
            started_at=min((step.started_at for step in steps if step.started_at), default=min(times, default=None)),
            ended_at=max(times, default=None),
            metadata=metadata,
        )

    def _reward(self, data: Fields, before: float | None) -> float | None:
        value = data.number("value")
        if data.get("source") == "fallback":
            self._job.report.drop("rewards that Agent-lightning filled in (source: fallback)")
            return before
        return before if value is None else value

    def _call(self, event: Fields, data: Fields, stores: Stores, name: str) -> list[Step]:
        request, response = data.object("request"), data.get("response")
        is_failed = data.get("status") == "error"
        if not isinstance(response, (dict, list)):
            if response is not None or not is_failed:
                data.wrong("response", "an object, or a list of chunks")
            response = {}
        status, ended, milliseconds = data.count("http_status"), event.time("timestamp"), data.number("latency_ms")
        seconds = None if milliseconds is None or not 0 <= milliseconds < 1e10 else milliseconds / 1e3
        body: dict[str, Any] | None = None if request is None else request.values
        began = None if ended is None or seconds is None else ended - timedelta(seconds=seconds)
        known = status if status is not None and status <= 999 else None
        # Only for how the body is read: a failed call without an answer is an error, one with a part of it is not.
        status = known or (500 if is_failed and not response else 200)
        steps = exchange_steps(
            stores, name, protocol_of(body, response), body, response, status=status, started_at=began, latency=seconds
        )
        server = data.object("server")
        version = policy_version(data, "model_version")
        if version is None and server is not None:
            version = policy_version(server, "version")
        self._job.report.drop("routed experts", data.get("routed_experts") is not None)
        retries = data.count("retry_count")
        for step in steps:
            step.policy_version = version
            if is_failed and step.status == "ok":
                # Such as a stream that broke off: what came of it is kept.
                amend(step, status="error")
            if step.error is not None and not response:
                amend(step, error=replace(step.error, message="", status=known))
            amend(step, attempts=tuple(replace(one, status=known) for one in step.attempts))
            if retries:
                step.metadata = {"retries": retries}
            if step.model is None:
                amend(step, model=data.text("model"))
        return steps
