"""Traces of Agent-lightning: events of 1.0, spans and triplets of 0.3, and rows of its datasets of turns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any, Generic, TypeVar

from rollout_trace.data.model import Step, Task, amend
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.importing.chat import chat_completion
from rollout_trace.importing.fields import Fields, OnError, is_finite, nothing
from rollout_trace.importing.imported import JSON, Imported, ImportReport, Job, each_file, imported
from rollout_trace.importing.inputs import Given, Input, documents
from rollout_trace.importing.span_tree import trajectories_of
from rollout_trace.importing.span_values import Span, any_value, as_json, spans_of
from rollout_trace.importing.steps import exchange_steps, logprob_of, number, policy_version, protocol_of, token_fields
from rollout_trace.wire.steps import Stores
from rollout_trace.wire.tool_results import tool_runs_of

T = TypeVar("T")
_NO_IDS = "the triplet has no token ids of the response."


def agent_lightning(path: Given, *, on_error: OnError = "raise", report: ImportReport | None = None) -> Imported:
    """Reads Agent-lightning's traces: one trajectory for each rollout, from its last attempt.

    It reads events (``model_request`` and ``reward``, with the answers' ids), spans (``rollout_id``, attributes
    ``prompt_token_ids``, ``response_token_ids``, ``logprobs.content``), triplets (``prompt``, ``response``; the reward
    is on the last), and rows of turns (``instance_id``, ``prompt_ids``, ``gold_completion_ids``). A reward with the
    source ``fallback`` was filled in by Agent-lightning: it is left out and counted.

    The lines of a rollout need not be adjacent, so each file is read completely first.

    Args:
        path: files, folders, patterns, addresses, or an open file.
        on_error: as for every importer, like ``report`` and the errors raised: see ``rollout_trace.importing``.
        report: as for every importer.
    """
    return imported("agent_lightning", path, JSON, on_error, report, each_file(_rollouts))


def _rollouts(source: Input, job: Job) -> Iterator[Trajectory]:
    events, triplets, spans = _Events(job), _Triplets(job, source.stem), _Spans(job)
    for record in documents(source, job.problems):
        if "event_type" in record.values:
            add = events.add
        elif "span_id" in record.values or "attributes" in record.values:
            add = spans.add
        elif record.values.keys() & {"triplets", "prompt_ids", "gold_completion_ids", "response"}:
            add = triplets.add
        else:
            expected, found = "an event, a span, a triplet or a row", "an object of another kind"
            job.problems.add(record.place.error(record.path, expected, found))
            continue
        job.attempt(add, record)
    for made in (events.trajectories(), spans.trajectories(), triplets.trajectories()):
        yield from made


class _Attempts(Generic[T]):
    """Records by rollout and attempt, in the order of the file."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._rollouts: dict[str, dict[str, list[T]]] = {}

    def _put(self, record: Fields, *items: T) -> None:
        attempts = self._rollouts.setdefault(record.require_name("rollout_id"), {})
        attempts.setdefault(record.name("attempt_id") or "0", []).extend(items)

    def _last(self) -> Iterator[tuple[str, str, list[T]]]:
        """The rollouts: of each its id, the last attempt, and the records of that."""
        for rollout, attempts in self._rollouts.items():
            self._job.report.drop("earlier attempts of rollouts", len(attempts) - 1)
            yield rollout, *list(attempts.items())[-1]


class _Spans(_Attempts[Span]):
    """Spans of 0.3."""

    def add(self, record: Fields) -> None:
        record.require_name("rollout_id")
        for span in spans_of(record):
            span.order = record.count("sequence_id") or 0
            self._put(record, span)

    def trajectories(self) -> Iterator[Trajectory]:
        for rollout, _, spans in self._last():
            made = trajectories_of(spans, self._job, rollout)
            if made:
                made[0].reward = _reward(spans)
                self._job.report.miss("rewards", made[0].reward is None)
            yield from made


def _reward(spans: list[Span]) -> float | None:
    """The last reward that was emitted: an annotation's first, or what ``emit_reward`` of older releases wrote."""
    found = None
    for span in sorted(spans, key=lambda one: one.order):
        for name in ("agentlightning.reward.0.value", "reward"):
            value = span.attributes.get(name)
            value = any_value(value) if isinstance(value, dict) else value
            found = float(value) if is_finite(value) else found
    return found


class _Events(_Attempts[Fields]):
    """Events of 1.0."""

    def add(self, record: Fields) -> None:
        self._put(record, record)

    def trajectories(self) -> Iterator[Trajectory]:
        yield from (self._trajectory(*one) for one in self._last())

    def _trajectory(self, rollout: str, attempt: str, events: list[Fields]) -> Trajectory:
        stores, name = Stores(), self._job.unique_id(rollout)
        steps: list[Step] = []
        reward, metadata = None, {"imported": {"source": "agent_lightning"}, "attempt_id": attempt}
        for event in events:
            kind, data = event.text("event_type"), event.object("data")
            if not data:
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
        body: dict[str, Any] | None = request.values if request else None
        began = None if ended is None or seconds is None else ended - timedelta(seconds=seconds)
        known = status if status is not None and status <= 999 else None
        # Only for how the body is read: a failed call without an answer is an error, one with a part of it is not.
        status = known or (500 if is_failed and not response else 200)
        steps = exchange_steps(
            stores, name, protocol_of(body, response), body, response, status=status, started_at=began, latency=seconds
        )
        version = policy_version(data, "model_version")
        if version is None:
            version = policy_version(data.object("server"), "version")
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


class _Triplets:
    """Triplets and rows, by the run that they are of, in the order of the file."""

    def __init__(self, job: Job, name: str) -> None:
        self._job, self._name = job, name
        self._runs: dict[str, list[Fields]] = {}
        self._facts: dict[str, Fields] = {}
        self._turns: dict[str, tuple[int, int]] = {}
        """Of each task: its last run, and the last turn of that."""
        self._ids: set[str] = set()

    def add(self, record: Fields) -> None:
        """Adds a triplet, a rollout with a list of them, or a row of a turn."""
        if "triplets" in record.values:
            run = record.name("rollout_id") or record.name("id") or f"{self._name}.{len(self._runs)}"
            run = run if run not in self._facts else f"{run}.{len(self._runs)}"
            self._facts[run] = record
            self._runs.setdefault(run, []).extend(record.objects("triplets"))
            return
        self._runs.setdefault(self._run_of(record), []).append(record)

    def _run_of(self, record: Fields) -> str:
        own = record.name("rollout_id") or record.object("metadata").name("rollout_id")
        if own is not None:
            return own
        task = record.name("instance_id")
        if task is None:
            return self._name
        # Rows of turns have no run: where the number of the turn does not grow, another one begins.
        turn, (run, last) = record.count("turn"), self._turns.get(task, (0, -1))
        run += turn is not None and turn <= last
        self._turns[task] = run, -1 if turn is None else turn
        return f"{task}.{run}"

    def trajectories(self) -> Iterator[Trajectory]:
        """The runs."""
        for run, records in self._runs.items():
            yield from self._job.guarded(lambda: [self._trajectory(run, records)])  # noqa: B023

    def _trajectory(self, run: str, records: list[Fields]) -> Trajectory:
        stores, name = Stores(), self._job.unique_id(run)
        steps = [self._step(record, stores, name, at) for at, record in enumerate(records)]
        stores.finish()
        facts = self._facts.get(run) or nothing(records[0].place)
        reward = facts.number("final_reward")
        if facts.get("final_reward") is None:
            # The reward of a run is on its last triplet.
            given = [step.reward for step in steps if step.reward is not None]
            reward = given[-1] if given else None
            self._leave_rewards_of_the_run(records, steps)
        self._job.report.miss("rewards", reward is None)
        task = records[0].name("instance_id") if records else None
        more = facts.object("metadata")
        trajectory = Trajectory(
            id=name,
            steps=steps,
            tool_runs=tool_runs_of(steps),
            reward=reward,
            rewards=more.named_numbers("rewards") or None,
            group_id=more.name("group_id") if more else task,
            rollout_index=more.count("rollout_index"),
            status="failed" if facts.get("rollout_state") == "failed" else "completed",
            metadata={"imported": {"source": "agent_lightning"}},
        )
        if more.get("task_id") is not None:
            trajectory.task = Task(id=more.name("task_id"))
        if task is not None:
            repo = records[0].get("repo")
            trajectory.task = Task(id=task, data=None if repo is None else {"repo": repo})
        return trajectory

    def _leave_rewards_of_the_run(self, records: list[Fields], steps: list[Step]) -> None:
        """Takes from steps the rewards that are not their own: the last is the run's, and rows of turns repeat it.

        A row has the reward of the next one that has one, where its turn was given none.
        """
        after: float | None = None
        for at in reversed(range(len(steps))):
            own = steps[at].reward
            is_repeated = _is_row(records[at]) and own == after
            if own is not None and (at == len(steps) - 1 or is_repeated):
                steps[at].reward = None
                self._job.report.note("rewards of turns that are those of a later turn or the run", is_repeated)
            after = own

    def _step(self, record: Fields, stores: Stores, run: str, at: int) -> Step:
        if _is_row(record):
            prompt, completion = record.ids("prompt_ids"), record.ids("gold_completion_ids")
            sent, text, logprobs = record.get("messages") or record.get("prompt"), None, _logprobs(record)
        else:
            asked, answered = record.object("prompt"), record.object("response")
            prompt, completion = asked.ids("token_ids"), answered.ids("token_ids")
            sent, text, logprobs = asked.get("raw_content"), answered.get("raw_content"), _logprobs(answered)
        messages, answer = _conversation(sent, text)
        tokens = token_fields(
            stores.tokens,
            prompt=prompt or None,
            completion=completion or None,
            logprobs=logprobs or None,
            missing=_NO_IDS,
        )
        self._job.report.miss_tokens(tokens["completion_token_ids"], tokens["logprobs"])
        self._job.report.miss("messages as they were sent", not messages)
        metadata = record.object("metadata")
        version = "policy_version" if "policy_version" in metadata.values else "model_version"
        name = metadata.name("step_id") or f"{run}.{at}"
        name = name if name not in self._ids else f"{run}.{at}"
        self._ids.add(name)
        return Step(
            **tokens,
            id=name,
            call_id=name,
            index=at,
            agent=metadata.text("agent_name"),
            protocol="openai.completions" if messages and isinstance(messages[0], str) else "openai.chat",
            response_id=metadata.name("response_id"),
            messages=messages or None,
            completion=None if answer is None else chat_completion(Fields(answer, record.place, record.path)),
            reward=record.number("reward"),
            policy_version=policy_version(metadata, version),
        )


def _is_row(record: Fields) -> bool:
    return "gold_completion_ids" in record.values or "prompt_ids" in record.values


def _logprobs(fields: Fields) -> list[float | None] | None:
    """One logprob for each token: numbers, or objects of OpenAI's with a ``logprob``."""
    name = "log_probs" if "log_probs" in fields.values else "logprobs"  # Those of 1.0, and of 0.3.
    values = fields.items(name)
    if values and all(isinstance(one, dict) for one in values):
        return [logprob_of(one) for one in fields.objects(name)]
    return fields.numbers(name)


def _conversation(sent: Any, answered: Any) -> tuple[list[Any], dict[str, Any] | None]:
    """The messages of a prompt, and the message of the answer, as far as a triplet has them."""
    sent, answered = as_json(sent), as_json(answered)
    answer: dict[str, Any] | None = None
    if isinstance(answered, list) and answered and isinstance(answered[-1], dict):
        answer = answered[-1]
    elif isinstance(answered, dict):
        answer = answered
    elif isinstance(answered, str):
        answer = {"role": "assistant", "content": answered}
    if isinstance(sent, str):
        return [sent], answer
    messages = [one for one in sent if isinstance(one, dict)] if isinstance(sent, list) else []
    if answer is None and messages and messages[-1].get("role") == "assistant":
        # Rows of turns have the answer behind the prompt.
        return messages[:-1], messages[-1]
    return messages, answer
