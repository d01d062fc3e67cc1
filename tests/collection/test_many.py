"""Thousands of rollouts against a server with faults: the file, the server and the agents give the same account.

300 in ``make test-all``, 2,000 in ``make kills``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from tests.amount import amount
from tests.collection.stress import plan
from tests.collection.stress.account import assert_same, planned
from tests.collection.stress.agents import AsyncAgent, SyncAgent, judge
from tests.collection.stress.served import serving

ROLLOUTS = amount(300, 300, 2000)
SAMPLES = 2
TASKS = ROLLOUTS // SAMPLES
CONCURRENCY = amount(64, 64, 256)
"""A rollout takes as long as all that run beside it: few, where other tests have the cores."""
TIMEOUT = amount(45, 45, 100)
"""Seconds. Far above what a rollout takes that does not stall, on a busy machine too: they are cut by it."""

pytestmark = [
    pytest.mark.more,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # Connections that the server cut.
]


def tasks() -> list[dict[str, Any]]:
    return [
        {"id": f"t{number}", "number": number, "question": f"naïve question {number} 🙂"} for number in range(TASKS)
    ]


def test_the_plan_has_all_faults() -> None:
    """What is tested below is what is meant."""
    met = Counter(
        kind for one in planned(TASKS, SAMPLES).values() for a in one for _, kinds in a.calls for kind in kinds
    )
    assert met.keys() == {"ok", "reset", "cut", "429", "500", "stall"}
    ended = Counter(attempts[-1].status for attempts in planned(TASKS, SAMPLES).values())
    assert ended["timeout"] > 0
    assert ended["completed"] > 0.9 * TASKS * SAMPLES
    attempts = Counter(len(one) for one in planned(TASKS, SAMPLES).values())
    assert attempts.keys() == {1, 2, 3}


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_nothing_is_missing_or_doubled(kind: str, tmp_path: Path) -> None:
    expected = planned(TASKS, SAMPLES)
    output = tmp_path / "rollouts.jsonl"
    usual: dict[str, Any] = {
        "output": output,
        "samples": SAMPLES,
        "concurrency": CONCURRENCY,
        "timeout": TIMEOUT,
        "retries": plan.RETRIES,
        "retry_wait": 0.01,
        "retry_wait_max": 0.02,
        "reward": judge,
        "progress": False,
    }
    with serving("plan", tmp_path) as server:
        agent: Any = AsyncAgent(server.base_url) if kind == "async" else SyncAgent(server.base_url)
        summary = asyncio.run(_in_a_loop(agent, usual)) if kind == "async" else rt.collect(agent, tasks(), **usual)
        # Before the server goes: agents that were left behind go on, and no more of it is recorded.
        seen, log = list(agent.seen), server.log()
    assert_same(rt.read(output), expected, log, seen)
    ended = Counter(attempts[-1].status for attempts in expected.values())
    assert summary.by_status == ended


async def _in_a_loop(agent: AsyncAgent, usual: dict[str, Any]) -> Any:
    try:
        return await rt.acollect(agent, tasks(), **usual)
    finally:
        await agent.close()
