"""What recording costs: CPU per model call of an agent with and without ``record``, in one process.

Both agents ask the same scripted server, which has a process of its own; rounds alternate, each in fresh memory.
"""

from __future__ import annotations

import gc
import io
import statistics
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from rich.console import Console
from smolagents import AgentLogger, CodeAgent, LogLevel, OpenAIModel, ToolCallingAgent, tool

import rollout_trace as rt
from rollout_trace.testing import Reply, ScriptedServer
from rollout_trace_smolagents import record

CALLS = 20  # the most steps that smolagents takes by default
ROUNDS = 15


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b


def serve(pipe: Connection) -> None:
    """Runs a server in a process of its own, until a message arrives on the pipe."""

    def script(request: Any) -> Any:
        if "tools" in request:
            return Reply("I add the numbers, as I was asked to.", tool_calls=[("add", '{"a": 1, "b": 2}')])
        return "I add the numbers, as I was asked to.\n<code>\nadd(1, 2)\n</code>"

    with ScriptedServer(script) as server:
        pipe.send(server.base_url)
        pipe.recv()


def measure(agent: Any) -> tuple[float, float]:
    """CPU seconds of this process for each model call of one run, and the same with the decoding at its end."""
    gc.collect()
    began = time.process_time()
    with rt.trajectory():
        agent.run("Add the numbers.", max_steps=CALLS)
        ran = time.process_time()
    return (ran - began) / (CALLS + 1), (time.process_time() - began) / (CALLS + 1)


def compare(kind: Any, base_url: str, **options: Any) -> str:
    """Rounds of the bare agent and of the recorded one."""
    # A streamed answer is drawn on the console even when the log is off.
    logger = AgentLogger(LogLevel.OFF, Console(file=io.StringIO()))
    bare, recorded = (
        kind([add], OpenAIModel("m", api_base=base_url, api_key="none"), logger=logger, **options) for _ in range(2)
    )
    record(recorded)
    for agent in (bare, recorded):
        measure(agent)
    rounds = [(measure(bare), measure(recorded)) for _ in range(ROUNDS)]
    call, decoded = (figure([(before[at], after[at]) for before, after in rounds]) for at in (0, 1))
    return f"{call}, decoded {decoded}, of {statistics.median(before[0] for before, _ in rounds) * 1e3:.1f} ms"


def figure(rounds: list[tuple[float, float]]) -> str:
    """The ratio of neighbouring rounds: the median, and where 80% lie."""
    ratios = sorted(after / before for before, after in rounds)
    low, high = ratios[len(ratios) // 10], ratios[-len(ratios) // 10]
    return f"{statistics.median(ratios):.3f}x ({low:.3f} to {high:.3f})"


def main() -> None:
    here, there = get_context("spawn").Pipe()
    server = get_context("spawn").Process(target=serve, args=(there,))
    server.start()
    base_url = here.recv()
    try:
        figures = [
            f"{kind.__name__}{' streamed' if stream else ''} {compare(kind, base_url, stream_outputs=stream)}"
            for kind in (ToolCallingAgent, CodeAgent)
            for stream in (False, True)
        ]
        print("smolagents, CPU per model call, recorded / bare, median (10% to 90%): " + "; ".join(figures))
    finally:
        here.send(None)
        server.join()


if __name__ == "__main__":
    main()
