"""A team of agents of the OpenAI Agents SDK, recorded token for token: a handoff, and an agent used as a tool.

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

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

import rollout_trace as rt
from rollout_trace.testing import Reply, ScriptedServer
from rollout_trace_openai_agents import record


@function_tool
def multiply(a: float, b: float) -> float:
    """Multiplies two numbers."""
    return a * b


async def solve(base_url: str, model_name: str, engine: str | None, question: str) -> str:
    """The agents, unchanged, save for ``record``."""
    set_tracing_disabled(True)  # Else the SDK sends its own traces to OpenAI.
    async with AsyncOpenAI(base_url=base_url, api_key=os.environ.get("OPENAI_API_KEY", "none")) as client:
        model = OpenAIChatCompletionsModel(model_name, client)
        mathematician = Agent(
            name="mathematician",
            instructions="You work out products, with the tool.",
            model=model,
            tools=[multiply],
        )
        manager = Agent(
            name="manager",
            instructions="You answer questions. For products, ask the mathematician.",
            model=model,
            tools=[mathematician.as_tool("ask_mathematician", "Works out products.")],
        )
        desk = Agent(
            name="desk",
            instructions="You pass questions about numbers on to the manager.",
            model=model,
            handoffs=[manager],
        )
        result = Runner.run_streamed(record(desk, engine=engine), question)
        async for _ in result.stream_events():  # What a user interface would show.
            pass
    return str(result.final_output)


def main() -> None:
    parser = argparse.ArgumentParser(description="Records agents of the OpenAI Agents SDK.")
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
        with rt.trajectory("desk", task="product/1") as trajectory:
            answer = asyncio.run(solve(base_url, asked.model, engine, "What is 17 * 23?"))
            rt.reward(float("391" in answer), children=True)
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
    name = request["tools"][0]["function"]["name"]
    if name == "transfer_to_manager":
        return Reply("The manager can help.", tool_calls=[(name, "{}")])
    gave = [message["content"] for message in request["messages"] if message["role"] == "tool"]
    if any("391" in content for content in gave):
        return Reply("17 * 23 is 391.")
    arguments = {"input": "What is 17 * 23?"} if name == "ask_mathematician" else {"a": 17, "b": 23}
    return Reply("Let me ask." if name == "ask_mathematician" else None, tool_calls=[(name, json.dumps(arguments))])


if __name__ == "__main__":
    main()
