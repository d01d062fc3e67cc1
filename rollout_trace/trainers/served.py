"""An agent for trainers that ask for one rollout at a time, and say with each where its model answers."""

from __future__ import annotations

import asyncio
import copy
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from rollout_trace.collection.agents import Agent, agent_of
from rollout_trace.collection.task_files import Keyed
from rollout_trace.record.context import current
from rollout_trace.train.groups import Group
from rollout_trace.trainers.feed import Feed

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.report import ExportReport

R = TypeVar("R")
OF_TRAINER = frozenset({"tasks", "samples", "order", "resume", "max_lag"})
"""Arguments of ``rt.rollouts`` whose place the trainer takes."""
_TOKEN = secrets.token_hex(4)


def own_key(key: str) -> str:
    """The id of a task in this process. Another one may make runs of the same task, and count them from 0, too."""
    return f"{_TOKEN}-{os.getpid()}/{key}"


def scored(one: Trajectory, run: Trajectory) -> Trajectory:
    """The trajectory with the reward of its run where it has none: a sub-agent is trained on with that."""
    return one if one.reward is not None else replace(one, reward=run.reward)


def longest(rows: Sequence[R], sampled: Callable[[R], int], report: ExportReport) -> R | None:
    """The row with the most sampled tokens; None where there is no row. The others are counted in ``report``."""
    report.drop("rows left out: of other sequences", len(rows[1:]))
    return max(rows, key=sampled, default=None)


class ServedTask(dict[str, Any]):
    """What the agent is called with: a dict of the trainer's fields, which is recorded, and attributes, which are not.

    ``AsyncOpenAI(base_url=task.base_url, api_key=task.api_key)`` is a client of the model, ``task.model`` its name.

    Args:
        fields: what the trainer says of the task.
        base_url: address of the model, as OpenAI's clients take it: it ends with ``/v1``.
        api_key: the key for it. It may be of this rollout alone: make a client in each.
        model: name of the model.
        group: ``group_id`` of the run.
        known: what is noted in ``metadata`` of the run.
    """

    def __init__(
        self,
        fields: Mapping[str, Any],
        *,
        base_url: str,
        api_key: str = "none",
        model: str = "",
        group: str = "",
        known: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(fields)
        self.base_url, self.api_key, self.model = base_url, api_key, model
        self.group, self.known = group, dict(known or {})
        self.is_cut = False
        """Whether the trainer has given the rollout up."""
        self.running: asyncio.Task[Any] | None = None
        """What runs its agent, where that can be cut: a coroutine, in this process."""

    def cut(self) -> None:
        """Ends its agent, where that can be, or keeps it from beginning."""
        self.is_cut = True
        if self.running is not None:
            self.running.cancel()


def _own(value: Any) -> Any:
    """A copy of what other runs are given, too; itself where it has none. A trainer's fields may be of any type."""
    try:
        return copy.deepcopy(value)
    except Exception:
        return value


class ServedAgent(Agent):
    """An agent of such tasks."""

    def own_task(self, task: Any) -> Any:
        """A copy of the fields, with the attributes of the task itself: who cuts that one cuts this one."""
        kind: Any = type(task)
        own = kind.__new__(kind)
        own.update({name: _own(value) for name, value in task.items()})
        own.__dict__ = task.__dict__
        return own

    def call(self, task: ServedTask, rollout: Any) -> Any:
        """Calls the user's function, in a run with the group of the task and what is known of it.

        Raises:
            RuntimeError: the trainer has given the rollout up.
        """
        run = current()
        if run is not None:
            run.group_id = task.group or run.group_id
            run.metadata = {**(run.metadata or {}), **task.known}
        rollout = replace(rollout, group=task.group or rollout.group)
        if task.is_cut:
            raise RuntimeError("the trainer gave this rollout up before it began.")
        if self.is_async:
            task.running = asyncio.current_task()
        return super().call(task, rollout)


class Served:
    """Makes rollouts of an agent one by one. Arguments as of ``Feed``."""

    def __init__(self, agent: Any, **options: Any) -> None:
        self._feed = Feed(agent_of(agent, ServedAgent), **options)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def make(self, key: str, task: ServedTask, samples: int = 1) -> Group:
        """The rollouts of a task, whose id ends with ``key``. Where the caller is cancelled, its agent is cut.

        Raises:
            RuntimeError: a rollout has no trajectory; the rollouts have ended; or they began in another event loop.
            Exception: what the stream raises.
        """
        self._loop = self._loop or asyncio.get_running_loop()
        if self._loop is not asyncio.get_running_loop():
            raise RuntimeError("the rollouts began in another event loop. Make a new adapter for each event loop.")
        try:
            (group,) = await self._feed.amake([Keyed(own_key(key), task)], samples)
        except asyncio.CancelledError:
            task.cut()
            raise
        return group

    async def aclose(self) -> None:
        """Cuts the rollouts that run, and waits until all is written."""
        await self._feed.aclose()
