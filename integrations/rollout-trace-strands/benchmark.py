"""What the hook adds to a model call: CPU time of the calling thread, beside the bare framework in the same process.

    python benchmark.py [--rounds 60]

Both ask the server for the same; runs of the two alternate. The budget is 1.03.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import time
from typing import Any

from openai import AsyncOpenAI
from strands import Agent, tool
from strands.models.openai import OpenAIModel

import rollout_trace as rt
from rollout_trace.testing import Reply, ScriptedServer
from rollout_trace_strands import RolloutHookProvider

TURNS = 3
ASKED = {"logprobs": True, "extra_body": {"return_token_ids": True}}


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: the first.
        b: the second.
    """
    return a + b


def script(request: dict[str, Any]) -> Reply:
    done = sum(message["role"] == "tool" for message in request["messages"])
    text = "Let me think about this for a while. " * 2
    return Reply(text, tool_calls=[("add", json.dumps({"a": done, "b": 2}))] if done < TURNS - 1 else [])


async def seconds_per_call(client: dict[str, Any], stream: bool, hooks: list[Any]) -> float:
    """CPU seconds of this thread for each model call of one run. Decoding, after the run, is the core's."""
    model = OpenAIModel(model_id="scripted", params=ASKED, stream=stream, **client)
    agent = Agent(model=model, tools=[add], callback_handler=None, hooks=hooks)
    with rt.trajectory():
        gc.collect()
        began = time.thread_time()
        await agent.invoke_async("Add.")
        return (time.thread_time() - began) / TURNS


async def measure(stream: bool, own_client: bool, rounds: int) -> str:
    """The ratio of the medians, and how far the ratios of neighbouring runs spread."""
    ratios, bare, hooked = [], [], []
    with ScriptedServer(script, chunk_tokens=4) as server:
        settings: dict[str, Any] = {"base_url": server.base_url, "api_key": "none"}
        clients = [AsyncOpenAI(**settings) for _ in range(2)]
        for at in range(-3, rounds):
            took = [0.0, 0.0]
            for kind in (0, 1) if at % 2 else (1, 0):
                hooks = [RolloutHookProvider(engine="vllm")] if kind else []
                client = {"client": clients[kind]} if own_client else {"client_args": settings}
                took[kind] = await seconds_per_call(client, stream, hooks)
            if at >= 0:  # the first rounds fill caches
                bare.append(took[0])
                hooked.append(took[1])
                ratios.append(took[1] / took[0])
        for one in clients:
            await one.close()
    low, middle, high = statistics.quantiles(ratios, n=4)
    before, after = (statistics.median(times) * 1e3 for times in (bare, hooked))
    return f"{after / before:.3f}x of {before:.1f} ms (pairs {middle:.3f}, quartiles {low:.3f} to {high:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description="What the hook adds to a model call.")
    parser.add_argument("--rounds", type=int, default=60)
    rounds = parser.parse_args().rounds
    cases = {
        "stream": (True, False),
        "unstreamed": (False, False),
        # Strands makes a client for each call, which costs many times the call; here the model is given one.
        "stream, given a client": (True, True),
        "unstreamed, given a client": (False, True),
    }
    found = [f"{name} {asyncio.run(measure(*case, rounds))}" for name, case in cases.items()]
    print("strands:", "; ".join(found))


if __name__ == "__main__":
    main()
