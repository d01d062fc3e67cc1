"""Makes jobs with an executor, and looks at what comes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from rollout_trace.collection.job import Executor, Outcome
from tests.collection.jobs import DoneBy

Made = TypeVar("Made")
AnyExecutor = TypeVar("AnyExecutor", bound=Executor)


def using(executor: AnyExecutor, body: Callable[[AnyExecutor], Coroutine[Any, Any, Made]]) -> Made:
    """What a coroutine returns; the executor is closed after it."""

    async def main() -> Made:
        try:
            return await asyncio.wait_for(body(executor), 120)
        finally:
            await executor.close()

    return asyncio.run(main())


def all_of(executor: AnyExecutor, *made: DoneBy) -> list[Outcome | BaseException]:
    """What comes of jobs that are begun together."""

    async def body(executor: AnyExecutor) -> list[Outcome | BaseException]:
        return await asyncio.gather(*map(executor.run, made), return_exceptions=True)

    return using(executor, body)


def said(outcomes: list[Outcome | BaseException]) -> list[str]:
    """The texts of outcomes; raises what is none."""
    for one in outcomes:
        if isinstance(one, BaseException):
            raise one
    return [one.trajectory_id for one in outcomes if isinstance(one, Outcome)]


async def exists(path: Path) -> None:
    """Waits for a file."""
    while not path.exists():
        await asyncio.sleep(0.005)
