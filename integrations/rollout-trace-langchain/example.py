"""An agent with a tool and a helper, recorded token for token.

python example.py                                                        # against a scripted server
python example.py --base-url http://localhost:8000/v1 --model M --engine vllm
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

import rollout_trace as rt
from rollout_trace.testing import Reply, ScriptedServer, ToolCall
from rollout_trace_langchain import record


@tool
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


def run(base_url: str, model: str, engine: str | None, path: str) -> None:
    """Runs the agent once and writes its trajectories to a file."""
    llm = record(ChatOpenAI(model=model, base_url=base_url, api_key="none"), engine=engine)  # type: ignore[arg-type]
    helper = create_agent(llm, [add], name="mathematician")

    @tool
    def ask_mathematician(question: str) -> str:
        """Ask a mathematician, who can add."""
        return str(helper.invoke({"messages": [("user", question)]})["messages"][-1].content)

    lead = create_agent(llm, [ask_mathematician], name="lead")
    with rt.recording(path), rt.trajectory("lead", task="sum/1") as trajectory:
        answer = lead.invoke({"messages": [("user", "What is 17 + 25? Ask the mathematician.")]})
        trajectory.reward = float("42" in answer["messages"][-1].text)


def show(path: str) -> None:
    """Prints what is in the file."""
    for trajectory in rt.read(path):
        print(f"{trajectory.name}: {trajectory.status}, reward {trajectory.reward}, parent {trajectory.parent_id}")
        for step in trajectory.steps:
            ids = "no" if step.completion_token_ids is None else len(step.completion_token_ids)
            print(f"  step {step.index} by {step.agent}: {step.status}, {step.finish_reason}, {ids} ids")
        for one in trajectory.tool_runs:
            print(f"  tool {one.name}({one.arguments}) -> {one.result!r}, asked for by step {one.step_id}")
        print(f"  {len(trajectory.sequences())} sequence(s) to train on")


def scripted(request: Mapping[str, Any]) -> Reply:
    """The answer of the scripted model."""
    name = request["tools"][0]["function"]["name"]
    last = request["messages"][-1]
    if last["role"] == "tool":
        return Reply(f"It is {last['content'].rsplit(' ')[-1]}")
    arguments = '{"question": "17 + 25?"}' if name == "ask_mathematician" else '{"a": 17, "b": 25}'
    return Reply(tool_calls=[ToolCall(name, arguments)])


@contextmanager
def server(base_url: str | None) -> Iterator[str]:
    """The address given, or that of a scripted server."""
    if base_url is not None:
        yield base_url
        return
    with ScriptedServer(scripted) as scripted_server:
        yield scripted_server.base_url


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", help="of a server with OpenAI's API; default: a scripted one")
    parser.add_argument("--model", default="scripted")
    parser.add_argument("--engine", help="asks the server for token ids: vllm, sglang, llama-server, ...")
    parser.add_argument("--out", default="langchain-rollouts.jsonl")
    options = parser.parse_args()
    engine = options.engine if options.base_url is not None else "vllm"
    with server(options.base_url) as base_url:
        run(base_url, options.model, engine, options.out)
    show(options.out)
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
