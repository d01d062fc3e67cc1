"""A stream of rollouts for a trainer that asks for some at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any

from rollout_trace.collection.rollouts import rollouts
from rollout_trace.train.groups import Group


class Feed:
    """A stream that is fed with tasks, in whose order their groups come. One trainer uses it.

    Args:
        agent: as for ``rt.rollouts``.
        samples: rollouts of each task.
        options: the other arguments of ``rt.rollouts``. An output that holds something is refused: a trainer that goes
            on from a checkpoint makes its rollouts anew.

    Raises:
        TypeError, ValueError, OSError, ImportError: as ``rt.rollouts``.
    """

    def __init__(self, agent: Any, *, samples: int, **options: Any) -> None:
        self._tasks = _Queue()
        self._groups = rollouts(agent, self._tasks, samples=samples, order="tasks", resume=False, **options)

    def make(self, tasks: Sequence[Any]) -> list[Group]:
        """The groups of tasks. Raises as the stream does."""
        for task in tasks:
            self._tasks.put(task)
        return [next(self._groups) for _ in tasks]

    async def amake(self, tasks: Sequence[Any]) -> list[Group]:
        """As ``make``, in an event loop."""
        for task in tasks:
            self._tasks.put(task)
        return [await self._groups.__anext__() for _ in tasks]

    def close(self) -> None:
        """Cuts the rollouts that run, and waits until all is written."""
        self._groups.close()


class _Queue(AsyncIterator[Any]):
    """Tasks that any thread puts, and one event loop gets. It never ends."""

    def __init__(self) -> None:
        self._tasks: deque[Any] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._change = asyncio.Event()

    def put(self, task: Any) -> None:
        """Adds a task."""
        self._tasks.append(task)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._change.set)

    async def __anext__(self) -> Any:
        self._loop = asyncio.get_running_loop()
        while True:
            self._change.clear()
            if self._tasks:
                return self._tasks.popleft()
            await self._change.wait()
