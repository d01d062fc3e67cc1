"""Records a code agent with a managed agent, and prints what was recorded.

Without options against a scripted server; with ``--base-url http://localhost:8000/v1 --model NAME --engine vllm``
against a real one.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from smolagents import CodeAgent, LogLevel, OpenAIModel, ToolCallingAgent, tool

import rollout_trace as rt
from rollout_trace.testing import Reply, ScriptedServer
from rollout_trace_smolagents import record


@tool
def population(city: str) -> int:
    """The number of people in a city.

    Args:
        city: its name
    """
    return {"Paris": 2_100_000, "Lyon": 520_000}.get(city, 0)


MANAGER: list[str | Reply] = [
    "Let me ask.\n<code>\nprint(statistician(task='How many in Paris and Lyon?'))\n</code>",
    "<code>\nfinal_answer('2.62 million')\n</code>",
]
STATISTICIAN: list[str | Reply] = [
    Reply(tool_calls=[("population", '{"city": "Paris"}'), ("population", '{"city": "Lyon"}')]),
    Reply(tool_calls=[("final_answer", '{"answer": "2100000 and 520000"}')]),
]


def script(request: Mapping[str, Any]) -> str | Reply:
    """The answer of the scripted model: the manager calls the statistician, who looks two cities up."""
    answers = STATISTICIAN if "tools" in request else MANAGER
    turn: int = sum(message["role"] == "assistant" for message in request["messages"])
    return answers[turn]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", help="of an OpenAI API; without it a scripted server answers")
    parser.add_argument("--model", default="scripted")
    parser.add_argument("--engine", help="of the server: vllm, sglang, llama-server, ...")
    parser.add_argument("--out", "--output", default="smolagents.jsonl")
    options = parser.parse_args()
    with ExitStack() as stack:
        base_url, engine = options.base_url, options.engine
        if base_url is None:
            base_url, engine = stack.enter_context(ScriptedServer(script)).base_url, engine or "vllm"
        model = OpenAIModel(options.model, api_base=base_url, api_key="none")
        statistician = ToolCallingAgent(
            [population], model, name="statistician", description="Knows numbers.", verbosity_level=LogLevel.OFF
        )
        agent = CodeAgent([], model, managed_agents=[statistician], verbosity_level=LogLevel.OFF)

        record(agent, engine=engine)
        with rt.recording(options.out), rt.trajectory("manager", task="population") as trajectory:
            answer = agent.run("How many people live in Paris and Lyon together?")
            trajectory.reward = float("2.62" in str(answer))
    print(f"answer: {answer}")
    show(options.out, trajectory.episode_id)


def show(path: str, episode: str | None) -> None:
    """Prints the run from the file, which may hold others too."""
    for trajectory in rt.read(path):
        if trajectory.episode_id != episode:
            continue
        print(f"\n{trajectory.name}: {trajectory.status}, reward {trajectory.reward}, parent {trajectory.parent_id}")
        for step in trajectory.steps:
            ids = "no" if step.completion_token_ids is None else len(step.completion_token_ids)
            turn = (step.metadata or {}).get("turn")
            print(f"  step {step.index} ({turn}): {step.status}, {step.finish_reason}, {ids} sampled ids")
        for run in trajectory.tool_runs:
            print(f"  tool {run.name}({run.arguments!r:.60}) gave {run.result!r:.60}")
        sequences = trajectory.sequences()
        for sequence in sequences:
            print(f"  training row: {len(sequence.token_ids)} tokens, {sequence.loss_mask.sum()} of them sampled")
        for reason, steps in sequences.report.left_out.items():
            print(f"  no training row for {len(steps)} steps: {reason}")
    print(f"\nwritten to {path}")


if __name__ == "__main__":
    main()
