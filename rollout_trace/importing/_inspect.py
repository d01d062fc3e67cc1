"""Logs of inspect_ai: ``.eval`` (a zip of JSON) and ``.json``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rollout_trace.data.model import Task
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.importing._inspect_log import Log, logs_of
from rollout_trace.importing._inspect_sample import Sample
from rollout_trace.importing.chat import error_of
from rollout_trace.importing.imported import each_file, imported

if TYPE_CHECKING:
    from rollout_trace.importing.fields import Fields, OnError
    from rollout_trace.importing.imported import Imported, Job
    from rollout_trace.importing.inputs import Given, Input
    from rollout_trace.importing.report import ImportReport

SUFFIXES = (".eval", ".json")
_GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""What inspect's own metrics make of these values of a score."""


def inspect(
    path: Given, *, score: str | None = None, on_error: OnError = "raise", report: ImportReport | None = None
) -> Imported:
    """The samples of logs: a trajectory for each epoch of a sample, and for each of its sub-agents.

    Each model event is a call, each choice of it a step; those of attempts before a retry are ``superseded``. The
    runs of one sample share a ``group_id`` (``TASK/SAMPLE``); ``rollout_index`` is the epoch, from 0. Scores that are
    numbers, truth values or the grades ``C``, ``P``, ``I``, ``N`` are in ``rewards``; the ``reward`` is that of
    ``score``, or the only one there is. Calls of another role than the agent's (a grader) are not trainable. Samples
    are read one at a time.

    Args:
        path: files, folders, patterns, addresses, or an open file.
        score: name of the score that is the reward, such as ``includes``, or ``NAME/KEY`` of one with several values.
        on_error: ``raise`` at the first value that cannot be read; ``skip``: leave it out, and keep its error in
            ``skipped`` of the iterator.
        report: counts what the source did not have, and what was left out.

    Raises:
        FileNotFoundError: there is nothing to read.
        ValueError: ``on_error`` has another value.
        FormatError: while iterating, unless skipped: something is no log.
        ImportError: while iterating: a log is compressed with zstd and the package zstandard is not installed.
    """

    def samples(source: Input, job: Job) -> Iterator[Trajectory]:
        for log, sample in logs_of(source, job):
            yield from job.guarded(lambda: _trajectories(log, sample, job, score))  # noqa: B023

    return imported("inspect", path, SUFFIXES, on_error, report, each_file(samples))


def _trajectories(log: Log, fields: Fields, job: Job, score: str | None) -> Iterator[Trajectory]:
    sample = Sample(fields, log, job)
    name = fields.require_name("id")
    epoch = fields.count("epoch")
    scores, whole = _scores(fields, score, job)
    root: Trajectory | None = None
    ids: dict[str, str] = {}
    """Of the trajectories, by their agents'."""
    own = fields.name("uuid") or f"{log.run_id or log.name}.{name}.{epoch or 1}"
    for agent in sample.agents:
        made = Trajectory(
            id=job.unique_id(own if root is None else f"{own}.{agent.id}"),
            name=agent.name or log.solver or "agent",
            steps=agent.steps,
            tool_runs=agent.tool_runs,
            metadata={"imported": {"source": "inspect", "log": log.name}},
        )
        ids[agent.id] = made.id
        if root is None:
            root = made
            _add_facts(made, fields, log, name, epoch)
            made.rewards, made.reward = scores or None, whole
        else:
            around, step = sample.parent_of(agent)
            made.episode_id, made.group_id = root.episode_id, root.group_id
            made.parent_id, made.parent_step_id = ids.get(around.id, root.id), None if step is None else step.id
            times = [step.started_at for step in agent.steps if step.started_at is not None]
            made.started_at, made.rollout_index = min(times, default=None), root.rollout_index
        yield made


def _add_facts(made: Trajectory, fields: Fields, log: Log, name: str, epoch: int | None) -> None:
    made.group_id = f"{log.task or log.name}/{name}"
    made.rollout_index = None if not epoch else epoch - 1
    data = {key: fields.get(key) for key in ("input", "target", "choices") if fields.get(key) is not None}
    data["metadata"] = fields.get("metadata")
    made.task = Task(id=made.group_id, data={key: value for key, value in data.items() if value})
    made.started_at, made.ended_at = fields.time("started_at"), fields.time("completed_at")
    limit = fields.object("limit")
    made.error = error_of(fields.get("error"))
    made.status = "failed" if made.error is not None else "completed"
    made.stop_reason = None if limit is None else limit.text("type")
    made.environment = log.environment
    # Their events are steps.
    retries = [{k: v for k, v in one.values.items() if k != "events"} for one in fields.objects("error_retries")]
    facts: dict[str, Any] = {"scores": fields.get("scores"), "error_retries": retries}
    made.metadata = {**(made.metadata or {}), **{key: value for key, value in facts.items() if value}}


def _scores(fields: Fields, chosen: str | None, job: Job) -> tuple[dict[str, float], float | None]:
    """The scores as numbers by their names, and the one that is the reward."""
    found: dict[str, float] = {}
    scores = fields.object("scores")
    for name in () if scores is None else scores.values:
        score = scores.object(name) if scores is not None else None
        value = None if score is None else score.get("value")
        for key, one in value.items() if isinstance(value, dict) else [("", value)]:
            number = _number(one)
            if number is None:
                job.report.drop("scores that are no numbers", one is not None)
            else:
                found[f"{name}/{key}" if key else name] = number
    if chosen is not None:
        job.report.miss(f"the score {chosen}", chosen not in found)
        return found, found.get(chosen)
    if len(found) > 1:
        job.report.miss("rewards: there are several scores, and score= names none")
        return found, None
    job.report.miss("rewards", not found)
    return found, next(iter(found.values()), None)


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        return _GRADES.get(value)
    if isinstance(value, (bool, int, float)) and abs(value) < float("inf"):
        try:
            return float(value)
        except OverflowError:
            return None
    return None
