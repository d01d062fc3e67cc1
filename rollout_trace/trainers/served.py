"""Runs an agent for trainers that ask for one rollout at a time and give each its model's address."""

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
from rollout_trace.data.user_values import brief
from rollout_trace.record.context import current
from rollout_trace.train.groups import Group
from rollout_trace.trainers.feed import Feed

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.report import ExportReport

R = TypeVar("R")
OF_TRAINER = frozenset({"tasks", "samples", "order", "resume", "max_lag"})
"""Arguments of ``rt.rollouts`` that the trainer sets itself."""
_TOKEN = secrets.token_hex(4)


def refuse(function: str, options: Mapping[str, Any], why: str, *more: str) -> None:
    """Raises TypeError for arguments that the trainer sets itself, these ones among them."""
    if refused := sorted({*OF_TRAINER, *more}.intersection(options)):
        raise TypeError(f"{function}() takes no {', '.join(refused)}: {why}.")


def one_of(several: str, *known: str) -> None:
    """Raises ValueError for another value of ``several``."""
    if several not in known:
        raise ValueError(f"several is {brief(several)}; give {' or '.join(map(repr, known))}.")


def own_key(key: str) -> str:
    """Returns a task id unique to this process: others may also run the same task and count its runs from 0."""
    return f"{_TOKEN}-{os.getpid()}/{key}"


def scored(one: Trajectory, run: Trajectory) -> Trajectory:
    """Returns the trajectory, with its run's reward if it has none: sub-agents are trained on the run's reward."""
    return one if one.reward is not None else replace(one, reward=run.reward)


def longest(rows: Sequence[R], sampled: Callable[[R], int], report: ExportReport) -> R | None:
    """Returns the row with the most sampled tokens, None without rows, and counts the others in ``report``."""
    report.drop("rows left out: of other sequences", len(rows[1:]))
    return max(rows, key=sampled, default=None)


class ServedTask(dict[str, Any]):
    """The agent's argument: a dict of the trainer's fields, which are recorded, with attributes, which are not.

    ``AsyncOpenAI(base_url=task.base_url, api_key=task.api_key)`` is a client of the model, ``task.model`` its name.

    Args:
        fields: the trainer's fields of the task.
        base_url: address of the model for OpenAI's clients, ending with ``/v1``.
        api_key: key for the address. It may be valid for this rollout only, so make a new client in each rollout.
        model: name of the model.
        group: ``group_id`` of the run.
        known: entries for the run's ``metadata``.
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
        """The task that runs the agent, if it can be cancelled: a coroutine in this process."""

    def cut(self) -> None:
        """Cancels the agent, if possible, or keeps it from starting."""
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
    """Wraps the user's agent so that it takes such tasks."""

    def own_task(self, task: Any) -> Any:
        """Returns a copy of the fields that shares the task's attributes: cutting the task also cuts the copy."""
        kind: Any = type(task)
        own = kind.__new__(kind)
        own.update({name: _own(value) for name, value in task.items()})
        own.__dict__ = task.__dict__
        return own

    def call(self, task: ServedTask, rollout: Any) -> Any:
        """Calls the user's function in a run with the task's group and metadata; RuntimeError where it was given up."""
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
    """Makes rollouts of an agent one at a time. Takes the arguments of ``Feed``."""

    def __init__(self, agent: Any, **options: Any) -> None:
        self._feed = Feed(agent_of(agent, ServedAgent), **options)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def make(self, key: str, task: ServedTask, samples: int = 1) -> Group:
        """Makes the rollouts of a task, whose id ends with ``key``. Cancelling the caller cancels the agent.

        Raises RuntimeError where a rollout has no trajectory, or they have ended, or began in another event loop.
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
        """Cancels running rollouts and waits until everything is written."""
        await self._feed.aclose()
