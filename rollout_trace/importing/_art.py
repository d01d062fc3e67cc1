"""Trajectories of OpenPipe ART: its compact form, its JSON, and the older one of messages and choices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

from rollout_trace.data.model import Step, ToolRun, amend
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.importing.fields import Fields, OnError
from rollout_trace.importing.imported import JSON, Imported, ImportReport, Job, each_file, imported
from rollout_trace.importing.inputs import Given, Input, documents
from rollout_trace.importing.steps import REBUILT, Thread, exchange_steps, number
from rollout_trace.wire.chat_messages import assistant_message
from rollout_trace.wire.steps import Stores
from rollout_trace.wire.tool_results import tool_runs_of

_REFERENCE = re.compile(r"\$(?:0|[1-9][0-9]*)\Z")
_DEPTH = 300


def art(path: Given, *, on_error: OnError = "raise", report: ImportReport | None = None) -> Imported:
    """Reads trajectories written by ART with ``compact_dump()``, ``model_dump_json()``, or its own log.

    Exchanges are decoded like recorded calls: ids and logprobs come from the answers, if the server sent them. The
    older form (``messages_and_choices``) has no requests: prompts are reconstructed, without ids. The trajectories of a
    group share a ``group_id``. A reward of 0.0 is kept and counted, because it is also ART's default.

    Args:
        path: files, folders, patterns, addresses, or an open file; with one value per file, or one per line.
        on_error: as for every importer, like ``report`` and the errors raised: see ``rollout_trace.importing``.
        report: as for every importer.
    """
    return imported("art", path, JSON, on_error, report, each_file(_values))


def _values(source: Input, job: Job) -> Iterator[Trajectory]:
    for at, value in enumerate(documents(source, job.problems)):
        yield from job.guarded(lambda: _value(value, f"{source.stem}.{at}", job))  # noqa: B023


def _value(value: Fields, name: str, job: Job) -> Iterator[Trajectory]:
    """The trajectories of one value: a trajectory, a group, or the compact form of one or many."""
    if value.get("format") is not None:
        yield from _compact(value, name, job)
    elif "trajectories" in value.values:
        yield from _group(value, name, job)
    elif "exchanges" in value.values or "messages_and_choices" in value.values:
        yield _trajectory(value, name, job)
    else:
        value.refuse("exchanges", "exchanges, messages_and_choices or trajectories")


def _compact(value: Fields, name: str, job: Job) -> Iterator[Trajectory]:
    if value.get("format") != "art.trajectories":
        value.refuse("format", '"art.trajectories"')
    if value.get("version") != 1 or isinstance(value.get("version"), bool):
        value.refuse("version", "1, the version that this reads")
    kind, strings = value.text("kind") or "", value.object("strings")
    if kind not in ("trajectory", "trajectories", "trajectory_group", "trajectory_groups"):
        value.refuse("kind", "trajectories or groups of them: dump those, not what ART tokenized")
    if not all(_REFERENCE.match(key) and isinstance(text, str) for key, text in strings.values.items()):
        value.refuse("strings", "texts by references such as $0")
    data = _resolved(value.get("data"), strings.values, value, 0)
    items = data if isinstance(data, list) else [data]
    for at, item in enumerate(items):
        path = f"$.data[{at}]" if isinstance(data, list) else "$.data"
        if not isinstance(item, dict):
            raise value.place.error(path, "an object", type(item).__name__)
        own = f"{name}.{at}" if isinstance(data, list) else name
        yield from job.guarded(lambda: _value(Fields({**item, "format": None}, value.place, path), own, job))  # noqa: B023


def _resolved(value: Any, strings: dict[str, Any], whole: Fields, depth: int) -> Any:
    """A value with the references to the table of strings replaced, in its keys too."""
    if depth > _DEPTH:
        whole.refuse("data", f"values nested at most {_DEPTH} levels deep")
    if isinstance(value, str):
        return strings.get(value, value)
    if isinstance(value, list):
        return [one if type(one) in (int, float) else _resolved(one, strings, whole, depth + 1) for one in value]
    if not isinstance(value, dict):
        return value
    found: dict[str, Any] = {}
    for key, item in value.items():
        name = str(strings.get(key, key))
        if name in found:
            whole.refuse("data", "objects whose keys differ when references are replaced")
        found[name] = _resolved(item, strings, whole, depth + 1)
    return found


def _group(group: Fields, name: str, job: Job) -> Iterator[Trajectory]:
    job.report.drop("exceptions of groups", len(group.items("exceptions") or ()))
    facts = group.object("metadata")
    group_id = facts.name("group_id")
    for at, value in enumerate(group.objects("trajectories")):
        for trajectory in job.guarded(lambda: [_trajectory(value, f"{name}.{at}", job)]):  # noqa: B023
            trajectory.group_id = group_id or name
            if trajectory.rollout_index is None:
                trajectory.rollout_index = at
            if facts.values:
                trajectory.metadata = {**(trajectory.metadata or {}), "group": facts.values}
            yield trajectory


def _trajectory(value: Fields, made_up: str, job: Job) -> Trajectory:
    """A trajectory. ``made_up``: its id, where the metadata have none: ART gives none, our own export does."""
    facts = value.object("metadata")
    name = job.unique_id(facts.name("trajectory_id") or made_up)
    made = Exchanges(value, name, job)
    # ART leaves out what has its default, and the default of a reward is 0.0: its own reader gives that, too.
    reward = value.number("reward") if "reward" in value.values else 0.0
    job.report.miss("rewards", reward is None)
    job.report.note("rewards of 0.0, which ART also gives what was not scored", reward == 0.0)
    first, last = value.count("initial_policy_version"), value.count("final_policy_version")
    job.report.note("policy versions of a whole trajectory, in its metadata", first is not None or last is not None)
    if first is not None and first == last:
        for step in made.steps:
            step.policy_version = first if step.policy_version is None else step.policy_version
    given = value.object("metrics")
    metrics = {name: number for name in given.values if (number := _metric(given, name)) is not None}
    metadata: dict[str, Any] = {**facts.values, "imported": {"source": "art"}}
    if value.get("logs"):
        metadata["logs"] = value.items("logs")
    if first is not None or last is not None:
        metadata["policy_versions"] = [first, last]
    times = [step.started_at for step in made.steps if step.started_at is not None]
    return Trajectory(
        id=name,
        steps=made.steps,
        tool_runs=made.tool_runs,
        reward=reward,
        metrics=metrics or None,
        metadata=metadata,
        started_at=min(times, default=None),
        ended_at=made.ended_at,
        rollout_index=facts.count("rollout_index") if "trajectory_id" in facts.values else None,
        task=facts.name("task_id") if "trajectory_id" in facts.values else None,  # type: ignore[arg-type]  # Converted.
    )


def _metric(metrics: Fields, name: str) -> float | None:
    """A number, or a truth value as one."""
    value = metrics.get(name)
    return float(value) if isinstance(value, bool) else metrics.number(name)


_PROTOCOLS = {
    "chat_completions": "openai.chat",
    "completions": "openai.completions",
    "responses": "openai.responses",
    "messages": "anthropic.messages",
}
_EARLY = datetime.min.replace(tzinfo=timezone.utc)


class Exchanges:
    """The steps and tool runs of one trajectory."""

    def __init__(self, value: Fields, name: str, job: Job) -> None:
        self.steps: list[Step] = []
        self.tool_runs: list[ToolRun] = []
        self.ended_at: datetime | None = None
        self._name, self._job = name, job
        self._stores = Stores()
        self._add_exchanges(value.object("exchanges"))
        for history in (value, *value.objects("additional_histories")):
            if history.get("messages_and_choices") is not None:
                self._add_history(history)
        self._stores.finish()
        number(self.steps, job.report)
        self.tool_runs = tool_runs_of(self.steps)

    def _add_exchanges(self, exchanges: Fields) -> None:
        found: list[tuple[datetime, int, str, Fields]] = []
        for kind in exchanges.values:
            if kind not in _PROTOCOLS:
                self._job.report.drop(f"exchanges of an unknown kind: {kind}")
                continue
            for one in exchanges.objects(kind):
                # Four lists: what came first is known by the times alone.
                began = one.time("start_time")
                # Our own export writes 1970 where the time is not known.
                found.append((_EARLY if began is None or began.year == 1970 else began, len(found), kind, one))
        for started, _, kind, exchange in sorted(found, key=lambda one: one[:2]):
            ended = exchange.time("end_time")
            known = started if started is not _EARLY else None
            if not exchange.object("response"):
                exchange.wrong("response", "an object")
                continue
            seconds = None if known is None or ended is None or ended < known else (ended - known).total_seconds()
            self.steps += exchange_steps(
                self._stores,
                f"{self._name}.{len(self.steps)}",
                _PROTOCOLS[kind],
                exchange.mapping("request"),
                exchange.get("response"),
                started_at=known,
                latency=seconds,
            )
            self.ended_at = ended if self.ended_at is None or (ended and ended > self.ended_at) else self.ended_at

    def _add_history(self, history: Fields) -> None:
        thread, tools = Thread(), history.items("tools")
        for item in history.objects("messages_and_choices"):
            if "message" not in item.values:
                thread.add(item.values)
                continue
            # A choice of a chat answer: what a server sends of one, with the ids in it.
            (step,) = exchange_steps(
                self._stores,
                f"{self._name}.{len(self.steps)}",
                "openai.chat",
                None,
                {"object": "chat.completion", "choices": [{**item.values, "index": 0}]},
            )[:1]
            amend(step, messages=thread.span(), tools=tools, attempts=())
            step.metadata = dict(REBUILT)
            self.steps.append(step)
            if step.completion is not None:
                thread.add(assistant_message(step.completion))
