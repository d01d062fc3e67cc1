"""Runs an agent as a workflow of AReaL 1.0 (``areal/api/workflow_api.py``)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from rollout_trace.collection.tasks import digest
from rollout_trace.data.episodes import NOT_SUCCEEDED
from rollout_trace.export import areal
from rollout_trace.report import ExportReport
from rollout_trace.trainers.served import Served, ServedTask, longest, one_of, refuse, scored

if TYPE_CHECKING:
    import os

    from areal.api.workflow_api import RolloutWorkflow
    from typing_extensions import Unpack

    from rollout_trace.collection.collect import Agent, Reward
    from rollout_trace.collection.rollouts import TrainerOptions
    from rollout_trace.train.groups import Group


def workflow(
    agent: Agent,
    *,
    reward: Reward,
    output: str | os.PathLike[str] | None = None,
    in_flight: int = 256,
    several: Literal["longest", "all"] = "longest",
    base_url: str | None = None,
    **options: Unpack[TrainerOptions],
) -> RolloutWorkflow:
    """Makes a workflow that runs an agent, for ``rollout_batch``, ``prepare_batch`` and ``submit`` of AReaL's engines.

    The agent's task is a dict: the item of the dataset. ``task.base_url`` is the address of an inference server; the
    engine's servers take turns. ``policy_version`` of each step is the engine's version when its call began.

    A run that failed, has no reward, or has no sampled ids with logprobs becomes a row with loss mask 0, so that it
    does not train; its reward, or 0.0, counts in its group's baseline. The workflow's ``report`` counts such runs.
    Every ``group_size`` consecutive rows are a group for AReaL, so leaving one out would shift all later ones. If all
    runs of an item are lost, AReaL is told so and takes none of them.

    ``group_id`` is the item's ``id`` or ``query_id``, otherwise derived from its content.

    Args:
        agent: as for ``rt.rollouts``.
        reward: as for ``rt.rollouts``.
        output: a new file, folder or address for the rollouts; None: rollouts are not kept.
        in_flight: maximum number of simultaneous rollouts; AReaL's own limit is lower.
        several: what to do with a run that has several rows, from drift, forks and sub-agents. ``longest``: use its own
            row with the most sampled tokens, and count the others in ``report``. ``all``: each becomes a row with the
            run's reward, for trainers that do not normalise rewards and advantages by group.
        base_url: address of the model, ending with ``/v1``; None: the engine's addresses.
        options: the other arguments of ``rt.rollouts``; ``engine`` is ``vllm``.

    Raises:
        ImportError: AReaL is not installed.
        TypeError, ValueError, OSError: an argument is wrong. Raised before any rollout.
    """
    one_of(several, "longest", "all")
    try:
        import torch
        from areal.api.workflow_api import RolloutWorkflow
        from areal.utils.data import concat_padded_tensors
    except ImportError as error:
        raise ImportError(f"trainers.areal needs AReaL 1.0, which cannot be imported: {error}") from error
    refuse("workflow", options, "AReaL decides which rollouts are made", "policy_version")
    engines: list[Any] = []
    given: dict[str, Any] = {"engine": "vllm", "progress": False, **options}
    given["policy_version"] = lambda: engines[-1].get_version() if engines else 0
    served = Served(agent, reward=reward, output=output, in_flight=in_flight, **given)
    turns = itertools.count()
    running: dict[int, list[asyncio.Future[bool]]] = {}
    """For each item, by its ``id()``: whether each of its runs sampled something."""

    class AgentWorkflow(RolloutWorkflow):  # type: ignore[misc]
        """Runs an agent of this process, recorded."""

        report = ExportReport()
        """Counts of what AReaL has no place for, over all episodes."""

        async def arun_episode(self, engine: Any, data: Mapping[str, Any]) -> dict[str, Any] | None:
            """Returns the rows of one run, [rows, length]; None if all of the item's current runs are lost."""
            engines[:] = [engine]
            key = str(next((data[name] for name in ("id", "query_id") if name in data), digest(data, lenient=True)))
            address = base_url or f"http://{engine.addresses[next(turns) % len(engine.addresses)]}/v1"
            # AReaL gives the runs of a group one object.
            group, sampled = running.setdefault(id(data), []), asyncio.get_running_loop().create_future()
            group.append(sampled)
            rows: list[dict[str, Any]] = []
            try:
                made = await served.make(key, ServedTask(data, base_url=address, model="default", group=key))
                rows = _rows_of(made, several, self.report)
            finally:
                if running.get(id(data)) is group and all(one.done() or one is sampled for one in group):
                    del running[id(data)]
                sampled.set_result(any(bool(row["loss_mask"].any()) for row in rows))
            await asyncio.wait(group)
            if not any(one.result() for one in group):
                return None
            tensors = [{name: torch.from_numpy(array) for name, array in row.items()} for row in rows]
            found: dict[str, Any] = concat_padded_tensors(tensors)
            return found

        async def aclose(self) -> None:
            """Cancels running rollouts and waits until everything is written. The end of AReaL's loop does the same."""
            await served.aclose()

    return AgentWorkflow()


def _rows_of(group: Group, several: str, report: ExportReport) -> list[dict[str, Any]]:
    """The rows of the run of a group: at least one."""
    import numpy as np

    (run,) = group.trajectories
    is_lost = run.status in NOT_SUCCEEDED or run.reward is None
    # A lost run has its place in the baseline, with a reward.
    run = run if run.reward is not None else replace(run, reward=0.0)
    inner = [scored(one, run) for one in group.inside] if several == "all" and not is_lost else []
    rows: list[dict[str, Any]] = list(areal([run, *inner], report=report)) if run.steps else []
    if not rows:
        whole = np.zeros((1, 2), np.int64)
        rows = [{"input_ids": whole, "loss_mask": whole, "logprobs": whole.astype(np.float32), "versions": whole - 1,
                 "attention_mask": whole == 0, "rewards": np.array([run.reward], np.float32)}]  # fmt: skip
        is_lost = True
    if is_lost or several == "longest":
        report.drop("trajectories inside another", len(group.inside))
        found = longest(rows, lambda row: int(row["loss_mask"].sum()), report)
        rows = [] if found is None else [found]
    if is_lost:
        report.note("runs as rows that nothing is learnt from", 1)
        rows = [{**row, "loss_mask": np.zeros_like(row["loss_mask"])} for row in rows]
    return rows
