"""CPU time of an agent's run, bare and recorded in turn: the ratio of the medians, and how far pairs spread.

For the benchmarks of integrations: ``from paired import Case, report``.
"""

from __future__ import annotations

import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_SERVER = """
import json, sys
from rollout_trace.testing import Reply, ScriptedServer

TURNS = int(sys.argv[1])

def script(request, messages):
    done = sum(message["role"] == "tool" for message in messages)
    text = "Let me think about this for a while. " * 2
    return Reply(text, tool_calls=[("add", json.dumps({"a": done, "b": 2}))] if done < TURNS - 1 else [])

with ScriptedServer(script, chunk_tokens=4) as server:
    print(server.url, flush=True)
    sys.stdin.read()
"""


@contextmanager
def adding_server(turns: int) -> Iterator[str]:
    """The address of a server in another process, whose CPU is not counted; OpenAI's clients need ``/v1`` behind it.

    Its model uses ``add(a, b)`` in all turns but the last.
    """
    command = [sys.executable, "-c", _SERVER, str(turns)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


@dataclass(frozen=True)
class Case:
    """Two ways to run the same agent."""

    name: str
    bare: Callable[[], Awaitable[object]]
    """One run without the hook, whose requests ask for what the hook's ask for."""
    recorded: Callable[[], Awaitable[object]]
    """One run with the hook, inside a trajectory that it opens and drops."""


async def report(framework: str, cases: list[Case], *, calls: int, rounds: int) -> None:
    """Prints one line: for each case the ratio of CPU time a model call, its quartiles over pairs, and what bare takes.

    Args:
        framework: name, for the line.
        cases: what is measured.
        calls: model calls of one run.
        rounds: pairs of runs; three more come first, which fill caches.
    """
    found = [f"{case.name} {await _measured(case, calls, rounds)}" for case in cases]
    print(f"{framework}:", "; ".join(found))


async def _measured(case: Case, calls: int, rounds: int) -> str:
    bare, recorded = [], []
    for at in range(-3, rounds):
        took = {}
        # In turn the first: what one of them leaves behind (garbage, caches) must not always hit the same one.
        for run in (case.bare, case.recorded) if at % 2 else (case.recorded, case.bare):
            gc.collect()
            began = time.process_time()
            await run()
            took[run] = (time.process_time() - began) / calls
        if at >= 0:
            bare.append(took[case.bare])
            recorded.append(took[case.recorded])
    ratios = [after / before for before, after in zip(bare, recorded, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    before, after = (statistics.median(times) * 1e3 for times in (bare, recorded))
    return f"{after / before:.3f}x of {before:.2f} ms (pairs {middle:.3f}, quartiles {low:.3f} to {high:.3f})"
