"""An executor of the user's own: the example of the documentation."""

from __future__ import annotations

import asyncio
import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import rollout_trace as rt
from rollout_trace.collection.job import Executor, Job, Outcome, Work
from rollout_trace.testing import ScriptedServer
from tests.collection import executor_agents as agents


class Threads:
    """Makes rollouts in a pool of threads."""

    def __init__(self, size: int) -> None:
        self.pool = ThreadPoolExecutor(size)
        self.work: Work | None = None

    async def run(self, job: Job) -> Outcome:
        self.work = job.work
        return await asyncio.wrap_future(self.pool.submit(job.run))

    async def close(self) -> None:
        if self.work is not None:
            await asyncio.to_thread(self.work.finish)


def test_rollouts_of_an_own_executor(tmp_path: Path) -> None:
    """They are those of the executor of this process, and complete when `collect` returns."""
    with ScriptedServer(lambda request: f"about {request['messages'][-1]['content']}") as server:
        tasks = agents.tasks(server.base_url, 3)
        for name, executor in (("here", None), ("there", Threads(2))):
            summary = rt.collect(
                agents.solve, tasks, output=tmp_path / f"{name}.jsonl", samples=2, engine="vllm", progress=False,
                executor=executor,
            )  # fmt: skip
            assert summary.by_status == {"completed": 6}
    assert agents.account(tmp_path / "there.jsonl") == agents.account(tmp_path / "here.jsonl")
    assert not (tmp_path / "there.jsonl.journal").exists() or not any((tmp_path / "there.jsonl.journal").iterdir())
    assert isinstance(Threads(1), Executor)


class Broken(Threads):
    """Can make no rollout."""

    async def run(self, job: Job) -> Outcome:
        raise RuntimeError("the scheduler is gone")


def test_an_executor_that_raises_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Several rollouts were begun: their exceptions are not printed as ones that nobody looked at."""
    with pytest.raises(RuntimeError, match="the scheduler is gone"):
        rt.collect(agents.solve, ["a", "b", "c"], output=tmp_path / "x.jsonl", progress=False, executor=Broken(1))
    gc.collect()
    assert not caplog.records
