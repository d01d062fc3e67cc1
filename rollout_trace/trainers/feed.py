"""A stream of rollouts for a trainer that asks for some at a time."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rollout_trace.collection.items import TaskItem
from rollout_trace.collection.rollouts import rollouts
from rollout_trace.collection.tasks import Naming
from rollout_trace.train.groups import Group

_ENDED = "the rollouts have ended: nothing more can be asked for."


class Feed:
    """A stream of rollouts that is fed with tasks: sync for one thread, or async for any number of callers.

    Takes the arguments of ``rt.rollouts``, and raises as it does. An output that is not empty is refused: a trainer
    that resumes makes its rollouts again. Without ``limits``, failures do not end the stream.
    """

    def __init__(self, agent: Any, *, name: str | None = None, **options: Any) -> None:
        self._tasks = _Queue()
        self._naming = Naming()
        self._rounds: Counter[str] = Counter()
        self._before = "" if name is None else f"{name}/"
        """What the ids of groups begin with."""
        self._wanted: dict[str, asyncio.Future[Group]] = {}
        self._pump: asyncio.Task[None] | None = None
        if "max_consecutive_failures" not in options and isinstance(options.get("limits") or {}, Mapping):
            # Training goes on, also while a server is down: no number of failures ends the rollouts for good.
            options["limits"] = {"failures": 0, **(options.get("limits") or {})}
        self._groups = rollouts(agent, self._tasks, name=name, resume=False, **options)

    def make(self, tasks: Sequence[Any], samples: int) -> list[Group]:
        """Makes the groups of the tasks, in order, each of so many rollouts. RuntimeError where one is missing."""
        wanted = [self._put(task, samples) for task in tasks]
        found: dict[str, Group] = {}
        while len(found) < len(wanted):
            group = next(self._groups, None)
            if group is None:
                raise RuntimeError(_ENDED)
            found[self._id_of(group)] = group
        return [_whole(found[one], samples) for one in wanted]

    async def amake(self, tasks: Sequence[Any], samples: int) -> list[Group]:
        """Does what ``make`` does, in an event loop. Several callers may wait at once, independently of each other."""
        loop = asyncio.get_running_loop()
        wanted = [self._wanted.setdefault(self._put(task, samples), loop.create_future()) for task in tasks]
        if self._pump is None or self._pump.done():
            self._pump = asyncio.ensure_future(self._hand_out())
        return [_whole(group, samples) for group in await asyncio.gather(*wanted)]

    async def _hand_out(self) -> None:
        try:
            while self._wanted:
                group = await self._groups.__anext__()
                waiting = self._wanted.pop(self._id_of(group))
                if not waiting.done():  # Who waited was cancelled.
                    waiting.set_result(group)
        except BaseException as error:
            is_end = isinstance(error, StopAsyncIteration) or not isinstance(error, Exception)
            failure = RuntimeError(_ENDED) if is_end else error
            for waiting in self._wanted.values():
                if not waiting.done():
                    waiting.set_exception(failure)
            self._wanted.clear()
            if not isinstance(error, Exception):
                raise

    def _put(self, task: Any, samples: int) -> str:
        """Adds a task; returns the id of its group."""
        item = replace(self._naming.item("the task", task), samples=samples)
        self._rounds[item.id] += 1
        self._tasks.put(item)
        return replace(item, round=self._rounds[item.id]).group

    def _id_of(self, group: Group) -> str:
        return str(group.id).removeprefix(self._before)

    def close(self) -> None:
        """Cancels running rollouts and waits until everything is written, after sync use."""
        self._groups.close()

    async def aclose(self) -> None:
        """Does what ``close`` does, after async use."""
        await self._groups.aclose()


def _whole(group: Group, samples: int) -> Group:
    if len(group.trajectories) != samples:
        raise RuntimeError(
            f"rollouts of {group.id!r} have no trajectory: their process was lost, a write failed, or they were older "
            "than max_lag each time."
        )
    return group


class _Queue(AsyncIterator[TaskItem]):
    """Tasks that any thread puts, and one event loop gets. It never ends."""

    def __init__(self) -> None:
        self._tasks: deque[TaskItem] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._change = asyncio.Event()

    def put(self, task: TaskItem) -> None:
        """Adds a task."""
        self._tasks.append(task)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._change.set)

    async def __anext__(self) -> TaskItem:
        self._loop = asyncio.get_running_loop()
        while True:
            self._change.clear()
            if self._tasks:
                return self._tasks.popleft()
            await self._change.wait()
