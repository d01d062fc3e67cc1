"""The collections that docs/evaluate.md shows: a summary of one, and what has changed since the run before."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

import rollout_trace as rt
from rollout_trace.testing import Fault, Reply, ScriptedServer

TASKS = [{"id": f"sum/{number}", "number": number} for number in range(10)]
PRICES = rt.PriceTable({"tiny": rt.Price(2.0, 8.0)})


def summary() -> str:
    """What a collection that went on with an earlier one printed: with failures, unscored runs, costs and a judge."""

    def model(request: dict[str, Any]) -> Any:
        text = request["messages"][-1]["content"]
        if text.startswith("refused"):
            return Fault(status=429)
        return Reply("yes" if "judge" in text else text[-1])

    with ScriptedServer(model) as server:

        async def ask(text: str) -> str:
            async with AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
                said = await client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": text}])
            return str(said.choices[0].message.content)

        async def solve(task: dict[str, Any], rollout: rt.Rollout) -> str:
            if rollout.index == 3 and task["number"] == 9:
                raise ValueError("the answer is no number")
            await ask("think")
            return await ask(
                f"{'refused' if rollout.index == 2 and task['number'] > 7 else 'sum'} {task['number'] % 2}"
            )

        async def answer(task: dict[str, Any], result: str, trajectory: rt.Trajectory) -> float:
            if task["number"] == 0 and trajectory.rollout_index == 1:
                raise KeyError("gold")
            await ask("judge this")
            return float(result == "1")

        def run(samples: int) -> rt.CollectSummary:
            return rt.collect(
                solve,
                TASKS,
                output="runs/gsm8k.jsonl",
                samples=samples,
                reward=answer,
                engine="vllm",
                progress=False,
                recording={"prices": PRICES},
            )

        run(1)
        return str(run(4))


_AGENT = """
from openai import OpenAI

# {}
def solve(task):
    with OpenAI() as client:
        messages = [{{"role": "user", "content": str(task["number"])}}]
        return client.chat.completions.create(model="m", messages=messages).choices[0].message.content
"""


def changes() -> str:
    """What a run prints whose agent, setting and tasks are not those of the run before."""
    printed = ""
    # Another test's, under whose name this one would not be imported.
    sys.modules.pop("agents", None)
    for version, (tasks, timeout) in enumerate(((3, 30), (5, 60))):
        Path("agents.py").write_text(_AGENT.format(f"version {version}"))
        out = io.StringIO()
        with contextlib.redirect_stderr(out):
            rt.collect("agents.py:solve", TASKS[:tasks], output="runs/changed.jsonl", timeout=timeout)
        printed = out.getvalue()
    return printed
