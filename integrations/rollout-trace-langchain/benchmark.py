"""CPU per model call of the bare framework, with its client recorded, and with the hook too, in the same process.

An agent of two turns with a tool runs once in each way, in turn, many times; a block's time is the median of its runs,
and what is printed is the median of the blocks' ratios, with the quartiles. The hook's ratio is of what it adds to the
recorded run. ``empty handler`` has the hook's methods and does nothing in them: what
LangChain itself spends on any handler. Recording includes decoding. The server runs in another process: its CPU is not
counted.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from langchain.agents import create_agent
from langchain_core.callbacks import BaseCallbackHandler
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


class Empty(BaseCallbackHandler):
    """A handler that is called like the hook and does nothing."""

    run_inline = raise_error = True
    ignore_retriever = ignore_retry = ignore_custom_event = True

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        pass

    on_chain_start = on_chain_end = on_chain_error = _nothing
    on_chat_model_start = on_llm_start = on_llm_end = on_llm_error = _nothing
    on_tool_start = on_tool_end = on_tool_error = _nothing


def main(blocks: int = 20, runs_each: int = 20) -> None:
    """Prints one line for each way to ask the model."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as served:
        assert served.stdin is not None
        assert served.stdout is not None
        base_url = served.stdout.readline().strip()
        try:
            for is_streamed in (False, True):
                times = measured(arms(base_url, is_streamed), blocks, runs_each)
                print(f"langchain{', streamed' if is_streamed else ''}: {said(times)}, {blocks} blocks", flush=True)
        finally:
            served.stdin.close()


def arms(base_url: str, is_streamed: bool) -> dict[str, Callable[[], Any]]:
    """The ways to run the agent."""
    # The same fields are requested in all: what the server sends more of is not the hook's cost.
    asked: Any = {"logprobs": True, "extra_body": {"return_token_ids": True}, "streaming": is_streamed}
    models = [ChatOpenAI(model="m", base_url=base_url, api_key="none", **asked) for _ in range(2)]  # type: ignore[arg-type]
    record(models[1])
    bare, recorded = (create_agent(model, [add], name="agent") for model in models)
    given: Any = {"messages": [{"role": "user", "content": "What is 1 + 2? " * 20}]}
    empty: Any = {"callbacks": [Empty()]}

    def with_hook() -> None:
        with rt.trajectory():
            recorded.invoke(given)

    def without_hook() -> None:
        registered = list(context._configure_hooks)
        context._configure_hooks[:] = [hook for hook in registered if hook[2] is not RolloutCallbackHandler]
        with_hook()
        context._configure_hooks[:] = registered

    return {
        "bare": lambda: bare.invoke(given),
        "empty": lambda: bare.invoke(given, empty),
        "recorded": without_hook,
        "hooked": with_hook,
    }


def measured(arms: dict[str, Callable[[], Any]], blocks: int, runs_each: int) -> dict[str, list[float]]:
    """Seconds of this process's CPU for one run in each way: the median of each block."""
    times: dict[str, list[float]] = {name: [] for name in arms}
    for block in range(-1, blocks):  # The first one warms up.
        spent: dict[str, list[float]] = {name: [] for name in arms}
        for number in range(runs_each):
            first = number % len(arms)
            names = [*arms][first:] + [*arms][:first]
            for name in names:
                spent[name].append(cpu(arms[name]))
        if block >= 0:
            for name in arms:
                times[name].append(statistics.median(spent[name]))
    return times


def said(times: dict[str, list[float]]) -> str:
    """Ratios to the bare run."""

    def ratio(more: str, less: str) -> str:
        every = zip(times[more], times[less], times["bare"], strict=True)
        low, median, high = statistics.quantiles((1 + (one - other) / bare for one, other, bare in every), n=4)
        return f"{median:.3f}x ({low:.3f} to {high:.3f})"

    call = 1e3 * statistics.median(times["bare"]) / TURNS
    return (
        f"hook {ratio('hooked', 'recorded')}, empty handler {ratio('empty', 'bare')}, "
        f"recording {ratio('recorded', 'bare')}, both {ratio('hooked', 'bare')} of the bare call's {call:.2f} ms CPU"
    )


def cpu(run: Callable[[], Any]) -> float:
    """Seconds of CPU of this process."""
    began = time.process_time()
    run()
    return time.process_time() - began


if __name__ == "__main__":
    main()
