"""Episodes of verifiers 0.4 (``verifiers.v1``, the ``traces.jsonl`` of prime-rl)."""

from __future__ import annotations

from collections.abc import Iterator

from rollout_trace.data.model import Task, ToolRun
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.importing._verifiers_graph import Graph
from rollout_trace.importing.chat import error_of
from rollout_trace.importing.fields import Fields, OnError, nothing
from rollout_trace.importing.imported import SESSIONS, Imported, ImportReport, Job, each_document, imported
from rollout_trace.importing.inputs import Given
from rollout_trace.importing.steps import recorded_run


def verifiers(path: Given, *, on_error: OnError = "raise", report: ImportReport | None = None) -> Imported:
    """Reads episodes of verifiers: one trajectory for each trace.

    Each sampled node is one step: its prompt is the nodes before it and the unsampled tokens at its own start, its
    completion the tokens that its mask marks. verifiers rounds logprobs to four decimals in its own files, which is
    counted in ``report.noted``. Values that our own export keeps in ``info["rollout_trace"]`` are restored.

    Args:
        path: files, folders, patterns, addresses, or an open file; with one episode (or one trace) per line.
        on_error: as for every importer, like ``report`` and the errors raised: see ``rollout_trace.importing``.
        report: as for every importer.
    """
    return imported("verifiers", path, (*SESSIONS, ".json"), on_error, report, each_document(_traces))


def _traces(episode: Fields, job: Job) -> Iterator[Trajectory]:
    if "nodes" in episode.values:
        yield _trajectory(episode, nothing(episode.place), job)
        return
    if episode.items("traces") is None:
        episode.refuse("traces", "a list of traces")
    made = [_trajectory(trace, episode, job) for trace in episode.objects("traces")]
    if not made:
        job.report.drop("episodes without traces")
    roots = [one for one in made if one.parent_id is None]
    for one in made:
        # Whoever else was there: the traces of an episode are one run.
        one.episode_id = roots[0].id if roots else episode.name("id") or one.id
    yield from made


def _trajectory(trace: Fields, episode: Fields, job: Job) -> Trajectory:
    info, agent = trace.object("info"), trace.object("agent")
    ours = info.object("rollout_trace")
    graph = Graph(trace, ours, job, trainable=bool(ours) or agent.flag("trainable") is not False)
    rewards, reward = _rewards(trace, is_ours=bool(ours))
    job.report.miss("rewards", reward is None)
    timing, end = trace.object("timing"), trace.object("timing").object("agent")
    errors, is_open = list(trace.objects("errors")), trace.flag("is_completed") is False
    trajectory = Trajectory(
        id=job.unique_id(trace.require_name("id")),
        name=agent.text("name") or "agent",
        group_id=episode.object("group").name("id"),
        steps=graph.steps,
        tool_runs=graph.tool_runs,
        reward=reward,
        rewards=rewards or None,
        metrics=trace.named_numbers("metrics") or None,
        status="failed" if trace.flag("ok") is False else "aborted" if is_open else "completed",
        stop_reason=trace.text("stop_condition"),
        error=error_of(errors[-1].values) if errors else None,
        # 0.0 is verifiers' word for a time that was not set.
        started_at=timing.time("start") if timing.number("start") else None,
        ended_at=end.time("end") if end.number("end") else None,
        metadata={"imported": {"source": "verifiers"}},
    )
    trajectory.task = _task(trace.object("task") or episode.object("task"))
    if ours:
        _restore(trajectory, ours)
    elif info.values:
        trajectory.metadata = {**(trajectory.metadata or {}), "info": info.values}
    return trajectory


def _restore(trajectory: Trajectory, ours: Fields) -> None:
    """Restores what our export keeps beside the trace."""
    parent = ours.name("parent_id")
    trajectory.parent_id = parent if parent != trajectory.id else None
    trajectory.parent_step_id = ours.name("parent_step_id")
    if "group_id" in ours.values:
        trajectory.group_id = ours.name("group_id")
    elif trajectory.parent_id is not None:
        trajectory.group_id = None  # An episode has one group: that of its outermost trajectory.
    if "tool_runs" in ours.values:
        trajectory.tool_runs = _tool_runs(ours, trajectory.tool_runs)
    trajectory.error = error_of(ours.get("error")) or trajectory.error
    trajectory.rollout_index = ours.count("rollout_index")
    trajectory.status = ours.text("status") or trajectory.status
    if trajectory.stop_reason == trajectory.status:
        trajectory.stop_reason = None  # The export gives the status where there is no reason.
    trajectory.environment = ours.mapping("environment") or None
    trajectory.metadata = {**ours.mapping("metadata"), **(trajectory.metadata or {})}


def _tool_runs(ours: Fields, sent: list[ToolRun]) -> list[ToolRun]:
    """The recorded runs of tools, with the results that were sent back to the model."""
    results = {run.tool_call_id: run.result for run in reversed(sent)}
    runs = []
    for record in ours.objects("tool_runs"):
        run = recorded_run(record, results.get(record.object("recorded").name("tool_call_id")))
        if run is not None:
            runs.append(run)
    return runs


def _task(task: Fields) -> Task | None:
    data, key = task.get("data"), task.name("key")
    # Our export nests the task's own data: verifiers gives fields of that name types of its own.
    nested = isinstance(data, dict) and data.keys() == {"id", "data"}
    data = data["data"] if nested and isinstance(data, dict) else data
    return None if key is None and data in (None, {}) else Task(id=key, data=data)


def _rewards(trace: Fields, *, is_ours: bool) -> tuple[dict[str, float], float | None]:
    """The named scores, and the reward, which is their weighted sum; None where nothing was scored."""
    found, whole = {}, None
    rewards = trace.object("rewards")
    for name in rewards.values:
        part = rewards.object(name)
        score = part.number("score")
        if score is None:
            continue
        weight = part.number("weight")
        whole = (whole or 0.0) + score * (1.0 if weight is None else weight)
        if name != "reward" or not is_ours:
            found[name] = score
    if is_ours and rewards.get("reward") is None:
        whole = None
    return found, whole if whole is None or abs(whole) < float("inf") else None
