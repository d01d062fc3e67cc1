"""An agent and a sub-agent of Google's ADK, recorded token for token.

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

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode  # type: ignore[attr-defined]
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.adk.tools.agent_tool import AgentTool
from google.genai import types

import rollout_trace as rt
from rollout_trace.testing import Reply, ScriptedServer
from rollout_trace_google_adk import record


def multiply(a: float, b: float) -> float:
    """Multiplies two numbers."""
    return a * b


def solve(base_url: str, model_id: str, engine: str | None, question: str) -> str:
    """The agent, unchanged, save for `record`."""
    model = LiteLlm(f"openai/{model_id}", api_base=base_url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    mathematician = LlmAgent(
        name="mathematician",
        description="Works out products.",
        instruction="You work out products, with the tool.",
        model=model,
        tools=[multiply],
    )
    manager = LlmAgent(
        name="manager",
        instruction="You answer questions. For products, ask the mathematician.",
        model=model,
        tools=[AgentTool(mathematician)],
    )
    return asyncio.run(ask(record(InMemoryRunner(manager, app_name="products"), engine=engine), question))


async def ask(runner: InMemoryRunner, question: str) -> str:
    """One run in a session of its own; returns the last text."""
    session = await runner.session_service.create_session(app_name=runner.app_name, user_id="user")
    message = types.Content(role="user", parts=[types.Part(text=question)])
    answer, config = "", RunConfig(streaming_mode=StreamingMode.SSE)
    events = runner.run_async(user_id="user", session_id=session.id, new_message=message, run_config=config)
    async for event in events:
        if event.is_final_response() and event.content and event.content.parts:
            answer = "".join(part.text or "" for part in event.content.parts)
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description="Records an agent of Google's ADK.")
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
            answer = solve(base_url, asked.model, engine, "What is 17 * 23?")
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
    arguments = {"request": "What is 17 * 23?"} if name == "mathematician" else {"a": 17, "b": 23}
    return Reply("Let me ask." if name == "mathematician" else None, tool_calls=[(name, json.dumps(arguments))])


if __name__ == "__main__":
    main()
