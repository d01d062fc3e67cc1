"""ATIF 1.0 to 1.8, the trajectory format of Harbor: one document for each run, with its sub-agents inside."""

from __future__ import annotations

from collections.abc import Iterator

from rollout_trace.data.model import Task
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.importing._atif_steps import Document
from rollout_trace.importing.chat import error_of
from rollout_trace.importing.fields import Fields, OnError
from rollout_trace.importing.imported import JSON, Imported, ImportReport, Job, each_document, imported
from rollout_trace.importing.inputs import Given

_DEPTH = 100
"""Levels of sub-agents inside each other that are read."""


def atif(path: Given, *, on_error: OnError = "raise", report: ImportReport | None = None) -> Imported:
    """Reads ATIF documents: the outermost trajectory first, then those of its sub-agents.

    Agent steps become steps, with the messages before them as their prompt. If ``extra.follows`` names a step other
    than the previous one, the prompt continues that step. Steps marked ``is_copied_context`` become messages only.
    Token ids and logprobs come from ``metrics`` and are validated; values that our own export keeps in ``extra`` are
    restored. A step that stands for several calls (``llm_call_count``) is not trainable.

    Args:
        path: files, folders, patterns, addresses, or an open file; with one document per file, or one per line.
        on_error: as for every importer, like ``report`` and the errors raised: see ``rollout_trace.importing``.
        report: as for every importer.
    """
    return imported("atif", path, JSON, on_error, report, each_document(_run))


def _run(document: Fields, job: Job) -> Iterator[Trajectory]:
    version = document.text("schema_version")
    if version is None or not version.startswith("ATIF-v1."):
        document.refuse("schema_version", 'a text that begins with "ATIF-v1."')
    yield from _trajectories(document, job, None, None, 0)


def _trajectories(
    document: Fields, job: Job, parent: Trajectory | None, parent_step_id: str | None, depth: int
) -> Iterator[Trajectory]:
    made = Document(document, job)
    trajectory = _trajectory(document, made, job, parent, parent_step_id)
    yield trajectory
    inner = list(document.objects("subagent_trajectories"))
    if depth >= _DEPTH:
        job.report.drop("sub-agents inside more than 100 others", len(inner))
        return
    embedded = set()
    for child in inner:
        name = child.name("trajectory_id") or child.name("session_id")
        embedded.add(name)
        yield from _trajectories(child, job, trajectory, made.caller_of.get(name or ""), depth + 1)
    elsewhere = sum(name not in embedded for name in made.caller_of) + made.references_by_path
    job.report.drop("references to sub-agents that are in other files", elsewhere)
    job.report.drop("continuations in other files", document.get("continued_trajectory_ref") is not None)


def _trajectory(
    document: Fields, made: Document, job: Job, parent: Trajectory | None, parent_step_id: str | None
) -> Trajectory:
    extra = document.object("extra")
    scores = document.object("final_metrics").object("extra") or extra
    agent = document.object("agent")
    session = document.name("session_id")
    own = document.name("trajectory_id") or session or document.place.name.rpartition("/")[2]
    trajectory = Trajectory(
        id=job.unique_id(own),
        name=agent.text("name") or "agent",
        episode_id=session or (None if parent is None else parent.episode_id),
        parent_id=None if parent is None else parent.id,
        parent_step_id=parent_step_id,
        steps=made.steps,
        tool_runs=made.tool_runs,
        reward=scores.number("reward"),
        rewards=scores.named_numbers("rewards") or None,
        metrics=scores.named_numbers("metrics") or None,
        metadata={"imported": {"source": "atif", "version": document.text("schema_version")}},
    )
    job.report.miss("rewards", trajectory.reward is None)
    if extra:
        _add_facts(trajectory, extra, parent)
    times = [step.started_at for step in made.steps if step.started_at is not None]
    trajectory.started_at = trajectory.started_at or min(times, default=None)
    trajectory.ended_at = trajectory.ended_at or max(times, default=None)
    if agent.get("version") not in (None, "unknown") and trajectory.environment is None:
        trajectory.environment = {"agent": {"name": agent.text("name"), "version": agent.text("version")}}
    return trajectory


def _add_facts(trajectory: Trajectory, extra: Fields, parent: Trajectory | None) -> None:
    """Restores what our export keeps in ``extra``; other fields go to the metadata."""
    task = extra.object("task")
    if task:
        trajectory.task = Task(id=task.name("id"), data=task.get("data"))
    trajectory.group_id, trajectory.rollout_index = extra.name("group_id"), extra.count("rollout_index")
    trajectory.status = extra.text("status") or trajectory.status
    trajectory.stop_reason, trajectory.error = extra.text("stop_reason"), error_of(extra.get("error"))
    trajectory.started_at, trajectory.ended_at = extra.time("started_at"), extra.time("ended_at")
    trajectory.environment = extra.mapping("environment") or None
    if parent is None and extra.name("parent_id") != trajectory.id:
        trajectory.parent_id = extra.name("parent_id")
    trajectory.metadata = {**extra.mapping("metadata"), **(trajectory.metadata or {})}
    others = {name: value for name, value in extra.values.items() if name not in _KNOWN}
    if others:
        trajectory.metadata = {**trajectory.metadata, "atif": others}


_KNOWN = frozenset(
    {"task", "group_id", "rollout_index", "parent_id", "status", "stop_reason", "error", "started_at", "ended_at"}
    | {"environment", "metadata", "failed_calls", "reward", "rewards", "metrics"}
)
