"""CPU that the hook adds to a model call, against the same call of the bare framework in the same process.

An agent of two turns with a tool runs in interleaved rounds: bare, with its client recorded, and with the hook too. The
hook's ratio is of what it adds to the recorded run: the median, with the quartiles. The last ratio is of all, decoding
included. The server runs in another process: its CPU is not counted.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_core.tracers import context
from langchain_openai import ChatOpenAI

import rollout_trace as rt
from rollout_trace_langchain import RolloutCallbackHandler, record

SERVER = """
import sys
from rollout_trace.testing import Reply, ScriptedServer, ToolCall

def script(request):
    if any(message["role"] == "tool" for message in request["messages"]):
        return Reply("The answer, in a sentence or two of ordinary length, is forty-two.")
    return Reply(tool_calls=[ToolCall("add", '{"a": 1, "b": 2}')])

with ScriptedServer(script) as server:
    print(server.base_url, flush=True)
    sys.stdin.read()
"""
TURNS = 2


@tool
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


def main(rounds: int = 60, runs_each: int = 5) -> None:
    """Prints one line."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as served:
        assert served.stdout is not None
        base_url = served.stdout.readline().strip()
        try:
            ratios, bare = measured(base_url, rounds, runs_each)
        finally:
            assert served.stdin is not None
            served.stdin.close()
    (low, median, high), (_, total, _) = (statistics.quantiles(values, n=4) for values in ratios)
    print(
        f"langchain: hook {median:.3f}x (quartiles {low:.3f} to {high:.3f}), recording and decoding included "
        f"{total:.3f}x, of the bare call's {1e3 * bare / (runs_each * TURNS):.2f} ms CPU, {rounds} rounds"
    )


def measured(base_url: str, rounds: int, runs_each: int) -> tuple[tuple[list[float], list[float]], float]:
    """Ratios of CPU time for each round (of the hook, of everything), and a round's median CPU time when bare."""
    # The same fields are asked for in both: what the server sends more of is not the hook's cost.
    asked: Any = {"logprobs": True, "extra_body": {"return_token_ids": True}}
    models = [ChatOpenAI(model="m", base_url=base_url, api_key="none", **asked) for _ in range(2)]  # type: ignore[arg-type]
    record(models[1])
    bare, hooked = (create_agent(model, [add], name="agent") for model in models)
    given: Any = {"messages": [{"role": "user", "content": "What is 1 + 2? " * 20}]}

    def plain() -> None:
        for _ in range(runs_each):
            bare.invoke(given)

    def without_hook() -> None:
        registered = list(context._configure_hooks)
        context._configure_hooks[:] = [hook for hook in registered if hook[2] is not RolloutCallbackHandler]
        with_hook()
        context._configure_hooks[:] = registered

    def with_hook() -> None:
        for _ in range(runs_each):
            with rt.trajectory():
                hooked.invoke(given)

    arms = (plain, without_hook, with_hook)
    hook, everything, times = [], [], []
    for warm in (True, False):
        for number in range(5 if warm else rounds):
            first = number % len(arms)
            spent = {run: cpu(run) for run in (*arms[first:], *arms[:first])}
            if not warm:
                times.append(spent[plain])
                hook.append(1 + (spent[with_hook] - spent[without_hook]) / spent[plain])
                everything.append(spent[with_hook] / spent[plain])
    return (hook, everything), statistics.median(times)


def cpu(run: Any) -> float:
    """Seconds of CPU of this process."""
    began = time.process_time()
    run()
    return time.process_time() - began


if __name__ == "__main__":
    main()
