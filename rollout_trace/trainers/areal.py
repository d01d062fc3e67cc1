"""AReaL: an agent as a workflow: AReaL 1.0, ``areal/api/workflow_api.py``."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from rollout_trace.collection.tasks import digest
from rollout_trace.data.episodes import NOT_SUCCEEDED
from rollout_trace.data.user_values import brief
from rollout_trace.export import areal
from rollout_trace.report import ExportReport
from rollout_trace.trainers.served import OF_TRAINER, Served, ServedTask, longest, scored

if TYPE_CHECKING:
    import os

    from areal.api.workflow_api import RolloutWorkflow
    from typing_extensions import Unpack

    from rollout_trace.collection.collect import Agent, Reward
    from rollout_trace.collection.rollouts import RolloutOptions
    from rollout_trace.train.groups import Group


def workflow(
    agent: Agent,
    *,
    reward: Reward,
    output: str | os.PathLike[str] | None = None,
    in_flight: int = 256,
    several: Literal["longest", "all"] = "longest",
    base_url: str | None = None,
    **options: Unpack[RolloutOptions],
) -> RolloutWorkflow:
    """Makes the workflow of an agent, for ``rollout_batch``, ``prepare_batch`` and ``submit`` of AReaL's engines.

    The agent's task is a dict: the item of the dataset. ``task.base_url`` is the inference server's address, each of
    the engine's in turn. ``policy_version`` of each step is the engine's version when its call began.

    A run that failed, has no reward, or from which nothing was sampled with ids and logprobs, is a row with the loss
    mask 0, so that nothing is learnt from it; its reward, or 0.0, is in the baseline of its group. ``report`` of the
    workflow counts these. AReaL takes each ``group_size`` rows that follow each other for a group: one left out would
    shift all that come after it. Where all runs of an item are lost, AReaL is told so, and takes none of them.

    ``group_id`` is the item's ``id`` or ``query_id``, else made of its content.

    Args:
        agent: as for ``rt.rollouts``.
        reward: as for ``rt.rollouts``.
        output: a new file, folder or address for the rollouts; None: they are not kept.
        in_flight: most rollouts at the same time; AReaL's own limit is lower.
        several: for a run with several rows, those of its drift, forks and sub-agents. ``longest``: its own row with
            the most sampled tokens; the others are counted in ``report``. ``all``: each is a row with the run's reward,
            for trainers whose reward and advantages are not normalised by groups.
        base_url: address of the model, which ends with ``/v1``; None: those of the engine.
        options: the other arguments of ``rt.rollouts``; ``engine`` is ``vllm``.

    Raises:
        ImportError: AReaL is not installed.
        TypeError, ValueError, OSError: an argument is wrong; before any rollout.
    """
    if several not in ("longest", "all"):
        raise ValueError(f"several is {brief(several)}; give 'longest' or 'all'.")
    try:
        import torch
        from areal.api.workflow_api import RolloutWorkflow
        from areal.utils.data import concat_padded_tensors
    except ImportError as error:
        raise ImportError(f"trainers.areal needs AReaL 1.0, which cannot be imported: {error}") from error
    if refused := sorted({"policy_version", *OF_TRAINER}.intersection(options)):
        raise TypeError(f"workflow() takes no {', '.join(refused)}: AReaL decides which rollouts are made.")
    engines: list[Any] = []
    given: dict[str, Any] = {"engine": "vllm", "progress": False, **options}
    given["policy_version"] = lambda: engines[-1].get_version() if engines else 0
    served = Served(agent, reward=reward, output=output, in_flight=in_flight, **given)
    turns = itertools.count()
    running: dict[int, list[asyncio.Future[bool]]] = {}
    """Of each item, by its ``id()``: whether something was sampled in each run of it."""

    class AgentWorkflow(RolloutWorkflow):  # type: ignore[misc]
        """Runs an agent of this process, recorded."""

        report = ExportReport()
        """What AReaL has no place for, over all episodes."""

        async def arun_episode(self, engine: Any, data: Mapping[str, Any]) -> dict[str, Any] | None:
            """The rows of one run, [rows, length]; None where it is lost, and with it all of the item that run now."""
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
            """Cuts the rollouts that run, and waits until all is written; the end of AReaL's loop does the same."""
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
