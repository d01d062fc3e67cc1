"""An agent of Pydantic AI that asks another one, recorded token for token.

Runs against an embedded server (no key, no network), or against yours:

    python example.py
    python example.py --base-url http://localhost:8000/v1 --engine vllm --model my-model
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from contextlib import ExitStack
from typing import Any

from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import rollout_trace as rt
from rollout_trace.testing import Reply, ScriptedServer
from rollout_trace_pydantic_ai import record


async def solve(base_url: str, model_name: str, engine: str | None, question: str) -> str:
    """The agents, unchanged, save for ``record``."""
    async with AsyncOpenAI(base_url=base_url, api_key=os.environ.get("OPENAI_API_KEY", "none")) as client:
        model = OpenAIChatModel(model_name, provider=OpenAIProvider(openai_client=client))
        mathematician = Agent(model, name="mathematician", instructions="You work out products, with the tool.")
        manager = Agent(model, name="manager", instructions="You answer questions. For products, ask.")

        @mathematician.tool_plain
        def multiply(a: float, b: float) -> float:
            """Multiplies two numbers."""
            return a * b

        @manager.tool_plain
        async def ask_mathematician(question: str) -> str:
            """Asks someone who works out products."""
            return (await mathematician.run(question)).output

        async with record(manager, engine=engine).run_stream(question) as answer:
            return str(await answer.get_output())


def main() -> None:
    parser = argparse.ArgumentParser(description="Records an agent of Pydantic AI.")
    parser.add_argument("--base-url", help="an OpenAI-compatible server; without it an embedded one answers")
    parser.add_argument("--model", default="scripted")
    parser.add_argument("--engine", help="vllm, sglang, ...: asks the server for token ids and logprobs")
    parser.add_argument("--out", default="rollouts.jsonl")
    asked = parser.parse_args()
    with ExitStack() as stack:
        base_url, engine = asked.base_url, asked.engine
        if base_url is None:
            base_url, engine = stack.enter_context(ScriptedServer(script)).base_url, "vllm"
        stack.enter_context(rt.recording(asked.out))
        with rt.trajectory("manager", task="product/1") as trajectory:
            answer = asyncio.run(solve(base_url, asked.model, engine, "What is 17 * 23?"))
            trajectory.reward = float("391" in answer)
    print(f"answer: {answer}")
    show(asked.out, trajectory.episode_id)


def show(path: str, episode: str | None) -> None:
    """Prints the run from the file."""
    for trajectory in rt.read(path):
        if trajectory.episode_id != episode:
            continue
        print(f"\n{trajectory.name} ({trajectory.id}, parent {trajectory.parent_id}), reward {trajectory.reward}")
        for step in trajectory.steps:
            ids = step.completion_token_ids
            count = "no" if ids is None else len(ids)
            called = [call.name for call in step.completion.tool_calls] if step.completion else []
            print(f"  step {step.index}: {step.status}, {count} sampled ids, calls {called}")
        for run in trajectory.tool_runs:
            print(f"  tool {run.name}({json.dumps(run.arguments)}) gave {run.result!r}")
        for sequence in trajectory.sequences():
            print(f"  training row: {len(sequence.token_ids)} tokens, {sequence.loss_mask.sum()} of them sampled")
    print(f"\nwritten to {path}")


def script(request: dict[str, Any]) -> Reply:
    """The embedded server's model."""
    gave = [message["content"] for message in request["messages"] if message["role"] == "tool"]
    name = request["tools"][0]["function"]["name"]
    if gave:
        return Reply("17 * 23 is 391.")
    arguments = {"a": 17, "b": 23} if name == "multiply" else {"question": "What is 17 * 23?"}
    return Reply(None, tool_calls=[(name, json.dumps(arguments, separators=(",", ":")))])


if __name__ == "__main__":
    main()
