"""What the hooks add to a model call: CPU time of the process, beside the bare framework in the same process.

    make bench-rollout-trace-inspect

Both ask the server for the same; runs of the two alternate. The budget is 1.03. An evaluation's trajectories are
decoded and written in it, beside the log; a loop's are dropped.
"""

from __future__ import annotations

import argparse
import asyncio
import contextvars
import os
import tempfile
from collections.abc import Awaitable, Callable
from typing import Any

from inspect_ai import Task, eval_async
from inspect_ai.agent import react
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, Model, get_model
from inspect_ai.tool import Tool, tool
from paired import Case, adding_server, report

import rollout_trace as rt
from rollout_trace_inspect import record

os.environ["INSPECT_DISPLAY"] = "none"

TURNS = 10
ASKED = GenerateConfig(logprobs=True, extra_body={"return_token_ids": True})


@tool
def add() -> Tool:
    async def execute(a: int, b: int) -> str:
        """Adds two numbers.

        Args:
            a: The first number.
            b: The second number.
        """
        return str(a + b)

    return execute


def model_of(url: str, **options: Any) -> Model:
    """A model of its own, so that only the recorded one is recorded."""
    settings = {"responses_api": False, "memoize": False, **options}
    return get_model("openai/scripted", base_url=f"{url}/v1", api_key="none", config=ASKED, **settings)


def alone(run: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[object]]:
    """Runs in a context of its own, where Inspect begins a new transcript."""

    async def in_a_context() -> None:
        async def task() -> None:
            await run()

        await contextvars.Context().run(asyncio.ensure_future, task())

    return in_a_context


def loop(model: Model) -> Callable[[], Awaitable[object]]:
    async def run() -> None:
        with rt.trajectory():
            await model.generate_loop("Add.", tools=[add()])

    return alone(run)


def evaluation(model: Model, folder: str) -> Callable[[], Awaitable[object]]:
    async def run() -> None:
        task = Task(dataset=[Sample(input="Add.")], solver=react(tools=[add()], submit=False))
        await eval_async(task, model=model, log_dir=folder, log_realtime=False)

    return alone(run)


async def measure(rounds: int) -> None:
    with adding_server(TURNS) as url, tempfile.TemporaryDirectory() as folder:
        cases = []
        for streaming in (False, True):
            bare, recorded = (model_of(url, streaming=streaming) for _ in range(2))
            record(recorded, engine="vllm")
            name = "streamed" if streaming else "unstreamed"
            cases.append(Case(f"loop {name}", loop(bare), loop(recorded)))
            cases.append(Case(f"evaluation {name}", evaluation(bare, folder), evaluation(recorded, folder)))
        await report("inspect", cases, calls=TURNS, rounds=rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description="What the hooks add to a model call.")
    parser.add_argument("--rounds", type=int, default=60)
    asyncio.run(measure(parser.parse_args().rounds))


if __name__ == "__main__":
    main()
