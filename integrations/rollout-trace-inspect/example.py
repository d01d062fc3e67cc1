"""An evaluation of Inspect, whose agent has a sub-agent, recorded token for token.

Runs against an embedded server (no key, no network), or against yours:

    python example.py
    python example.py --base-url http://localhost:8000/v1 --engine vllm --model my-model
"""

from __future__ import annotations

import argparse
import json
import os
from contextlib import ExitStack
from typing import Any

from inspect_ai import Task, eval
from inspect_ai.agent import as_tool, react
from inspect_ai.dataset import Sample
from inspect_ai.model import get_model
from inspect_ai.scorer import includes
from inspect_ai.tool import Tool, tool

import rollout_trace as rt
from rollout_trace.testing import Reply, ScriptedServer
from rollout_trace_inspect import record


@tool
def multiply() -> Tool:
    async def execute(a: float, b: float) -> float:
        """Multiplies two numbers.

        Args:
            a: The first.
            b: The second.
        """
        return a * b

    return execute


def products() -> Task:
    """The task, unchanged."""
    mathematician = react(
        name="mathematician",
        description="Works out products.",
        prompt="You work out products, with the tool.",
        tools=[multiply()],
        submit=False,
    )
    manager = react(
        name="manager",
        prompt="You answer questions. For products, ask the mathematician.",
        tools=[as_tool(mathematician)],
        submit=False,
    )
    return Task(dataset=[Sample(input="What is 17 * 23?", target="391")], solver=manager, scorer=includes())


def evaluate(base_url: str, model_id: str, engine: str | None, logs: str, epochs: int = 1) -> float | None:
    """Evaluates the model; the accuracy."""
    key = os.environ.get("OPENAI_API_KEY", "none")
    model = get_model(f"openai-api/server/{model_id}", base_url=base_url, api_key=key, memoize=False, stream=True)
    (log,) = eval(products(), model=record(model, engine=engine), epochs=epochs, log_dir=logs, display="none")
    return None if log.results is None else float(log.results.scores[0].metrics["accuracy"].value)


def main() -> None:
    parser = argparse.ArgumentParser(description="Records an evaluation of Inspect.")
    parser.add_argument("--base-url", help="an OpenAI-compatible server; without it an embedded one answers")
    parser.add_argument("--model", default="scripted")
    parser.add_argument("--engine", help="vllm, sglang, ...: asks the server for token ids and logprobs")
    parser.add_argument("--out", default="rollouts.jsonl")
    parser.add_argument("--log-dir", default="logs")
    parser.add_argument("--epochs", type=int, default=2)
    asked = parser.parse_args()
    with ExitStack() as stack:
        base_url, engine = asked.base_url, asked.engine
        if base_url is None:
            base_url, engine = stack.enter_context(ScriptedServer(script)).base_url, "vllm"
        # Without a recording the trajectories go to a file beside the log.
        stack.enter_context(rt.recording(asked.out))
        accuracy = evaluate(base_url, asked.model, engine, asked.log_dir, asked.epochs)
    print(f"accuracy: {accuracy}")
    show(asked.out)


def show(path: str) -> None:
    """Prints the trajectories of the file."""
    for trajectory in rt.read(path):
        print(f"\n{trajectory.name} ({trajectory.id}, parent {trajectory.parent_id}), reward {trajectory.reward}")
        if trajectory.task is not None:
            print(f"  task {trajectory.task.id}, epoch {trajectory.rollout_index}")
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
    arguments = {"input": "What is 17 * 23?"} if name == "mathematician" else {"a": 17, "b": 23}
    return Reply("Let me ask." if name == "mathematician" else None, tool_calls=[(name, json.dumps(arguments))])


if __name__ == "__main__":
    main()
