"""AReaL: an agent as a workflow: AReaL 1.0, ``areal/api/workflow_api.py``."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rollout_trace.collection.tasks import digest
from rollout_trace.export import areal
from rollout_trace.report import ExportReport
from rollout_trace.trainers.served import OF_TRAINER, Served, ServedTask

if TYPE_CHECKING:
    import os

    from areal.api.workflow_api import RolloutWorkflow
    from typing_extensions import Unpack

    from rollout_trace.collection.collect import Agent, Reward
    from rollout_trace.collection.rollouts import RolloutOptions
    from rollout_trace.data.trajectory import Trajectory


def workflow(
    agent: Agent,
    *,
    reward: Reward,
    output: str | os.PathLike[str] | None = None,
    in_flight: int = 256,
    base_url: str | None = None,
    **options: Unpack[RolloutOptions],
) -> RolloutWorkflow:
    """Makes the workflow of an agent, for ``rollout_batch``, ``prepare_batch`` and ``submit`` of AReaL's engines.

    The agent's task is a dict: the item of the dataset. ``task.base_url`` is the inference server's address, each of
    the engine's in turn. AReaL gets one row of tensors for each row of the run: of its drift, forks and sub-agents,
    all with the run's reward.

    A run that failed, has no reward, or from which nothing was sampled with ids and logprobs, is rejected, which AReaL
    takes for no sample at all; ``report`` of the workflow counts these. ``policy_version`` of each step is the engine's
    version when its call began.

    ``group_id`` is the item's ``id`` or ``query_id``, else made of its content.

    Args:
        agent: as for ``rt.rollouts``.
        reward: as for ``rt.rollouts``.
        output: a new file, folder or address for the rollouts; None: they are not kept.
        in_flight: most rollouts at the same time; AReaL's own limit is lower.
        base_url: address of the model, which ends with ``/v1``; None: those of the engine.
        options: the other arguments of ``rt.rollouts``; ``engine`` is ``vllm``.

    Raises:
        ImportError: AReaL is not installed.
        TypeError, ValueError, OSError: an argument is wrong; before any rollout.
    """
    try:
        import torch
        from areal.api.workflow_api import RolloutWorkflow
        from areal.utils.data import concat_padded_tensors
    except ImportError as error:
        raise ImportError("a workflow needs the package areal, 1.0 or later: pip install areal") from error
    if refused := sorted({"policy_version", *OF_TRAINER}.intersection(options)):
        raise TypeError(f"workflow() takes no {', '.join(refused)}: AReaL says which rollouts are made.")
    engines: list[Any] = []
    given: dict[str, Any] = {"engine": "vllm", "progress": False, **options}
    given["policy_version"] = lambda: engines[-1].get_version() if engines else 0
    served = Served(agent, reward=reward, output=output, in_flight=in_flight, **given)
    turns = itertools.count()

    class AgentWorkflow(RolloutWorkflow):  # type: ignore[misc]
        """Runs an agent of this process, recorded."""

        report = ExportReport()
        """What AReaL has no place for, over all episodes."""

        async def arun_episode(self, engine: Any, data: Mapping[str, Any]) -> dict[str, Any] | None:
            """The rows of one run, [rows, length]; None where it is rejected."""
            engines[:] = [engine]
            key = str(next((data[name] for name in ("id", "query_id") if name in data), digest(data, lenient=True)))
            address = base_url or f"http://{engine.addresses[next(turns) % len(engine.addresses)]}/v1"
            group = await served.make(key, ServedTask(data, base_url=address, model="default", group=key))
            (run,) = group.trajectories
            is_lost = run.status == "failed" or run.reward is None
            rows = [] if is_lost else areal(_scored(run, group.inside), report=self.report)
            if not rows:
                self.report.note("runs that were rejected: failed, without a reward, or nothing was sampled", 1)
                return None
            tensors = [{name: torch.from_numpy(array) for name, array in row.items()} for row in rows]
            found: dict[str, Any] = concat_padded_tensors(tensors)
            return found

        async def aclose(self) -> None:
            """Cuts the rollouts that run, and waits until all is written; the end of AReaL's loop does the same."""
            await served.aclose()

    return AgentWorkflow()


def _scored(run: Trajectory, inside: tuple[Trajectory, ...]) -> list[Trajectory]:
    """A run and what was opened inside it, with the reward of the run where it has none of its own."""
    return [run, *(one if one.reward is not None else replace(one, reward=run.reward) for one in inside)]
