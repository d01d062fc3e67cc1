"""What recording keeps in memory, each workload in a process of its own.

As a program it runs one workload and prints what it measured: ``python -m benchmarks.memory kept 1000``.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import resource
import subprocess
import sys
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from openai import AsyncOpenAI

import rollout_trace as rt
from benchmarks import payloads
from benchmarks.clients import async_client, ensure_recorded, post, sync_client
from benchmarks.payloads import Exchange
from benchmarks.report import Effort, Row, at_most, spread
from benchmarks.trajectories import SAMPLED, LongAgent

Measured = dict[str, float]
MB = 1e6
CALLS_A_TRAJECTORY = 10
NEAR = 2
"""A long agent's state may be so many times the plain size of its distinct tokens and messages. Our own limit."""


def run(effort: Effort) -> Iterator[Row]:
    """Rows of this section."""
    yield _kept(effort)
    agents, turns = effort.size(16, 4), effort.size(200, 40)
    yield from _long_agents(agents, turns)


def _kept(effort: Effort) -> Row:
    calls, traced_calls = effort.size(1000, 300), effort.size(200, 40)
    traced, resident = _child("kept-traced", traced_calls), _child("kept", calls)
    grown, tokens, words = (traced[name] / traced_calls * 1000 / MB for name in ("grown", "tokens", "text"))
    more = f"ids and logprobs {tokens:.1f}, text {words:.1f}; resident +{resident['grown'] / calls * 1000 / MB:.1f} MB"
    return at_most("1,000 kept calls of 2,000 + 500 tokens", spread([grown]), 20, form=".1f", unit=" MB", more=more)


def _long_agents(agents: int, turns: int) -> Iterator[Row]:
    one = _child("agents-traced", 1, turns)
    state, tokens, text = one["grown"] / MB, one["tokens"], one["text"] / MB
    more = f"{state:.2f} MB for {tokens:,.0f} tokens and {text:.2f} MB of messages; {state / tokens * MB:.1f} B a token"
    what = f"agent of {turns} turns, state beside its distinct content"
    yield at_most(what, spread([one["grown"] / one["plain"]]), NEAR, form=".2f", unit="×", more=more)
    recorded, bare = _child("agents", agents, turns), _child("agents-bare", agents, turns)
    peak, bodies = (recorded["peak"] - bare["peak"]) / MB, recorded["bodies"] / MB
    more = f"+{peak:,.0f} MB, without recording {bare['peak'] / MB:,.0f} MB; all bodies {bodies:,.0f} MB"
    what = f"{agents} such agents at once, peak added beside all bodies"
    yield at_most(what, spread([peak / bodies]), None, form=".3f", unit="×", more=more)


def _child(workload: str, *sizes: int) -> Measured:
    command = [sys.executable, "-m", "benchmarks.memory", workload, *map(str, sizes)]
    output = subprocess.run(command, check=True, capture_output=True, cwd=Path(__file__).parents[1]).stdout
    measured: Measured = json.loads(output)
    return measured


# In the child.


def _keep_calls(calls: int, memory: Callable[[], float]) -> Measured:
    """Trajectories of ten calls each, closed and kept; every prompt another, after one system message."""
    # What a first call brings along (numpy, caches) is not what a call keeps.
    _record(_single_turns(7), 5)
    exchanges = _single_turns(8)
    before = memory()
    kept = [_record(exchanges, CALLS_A_TRAJECTORY) for _ in range(calls // CALLS_A_TRAJECTORY)]
    del exchanges
    grown = memory() - before
    ensure_recorded()
    steps = [step for trajectory in kept for step in trajectory.steps]
    return {"grown": grown, "tokens": 12_000 * len(steps), "text": sum(map(_text, steps))}


def _record(exchanges: Iterator[Exchange], calls: int) -> rt.Trajectory:
    answers: deque[Exchange] = deque()
    client = rt.wrap_openai(sync_client(iter(answers.popleft, None)))
    with rt.trajectory() as trajectory:
        for exchange in islice(exchanges, calls):
            answers.append(exchange)
            post(client, exchange)
    return trajectory


def _single_turns(seed: int) -> Iterator[Exchange]:
    source = random.Random(seed)
    system = {"role": "system", "content": payloads.text(400, source)}
    while True:
        messages = [system, {"role": "user", "content": payloads.text(7_000, source)}]
        prompt = payloads.token_ids(2_000, source.getrandbits(32))
        yield payloads.unary("", messages, prompt, 500, source.getrandbits(32))


def _text(step: rt.Step) -> int:
    """Letters of the one message and the completion that no other step has."""
    said = step.completion.content if step.completion is not None else None
    return len(said or "") + len((step.messages or [{}])[-1]["content"])


def _run_agents(agents: int, turns: int, memory: Callable[[], float], *, recorded: bool) -> Measured:
    asyncio.run(_all_agents([LongAgent(-1)], 2, [] if recorded else None))
    before = memory()
    workers = [LongAgent(seed) for seed in range(agents)]
    kept: list[rt.Trajectory] = []
    asyncio.run(_all_agents(workers, turns, kept if recorded else None))
    if recorded:
        ensure_recorded()
    tokens, text = (sum(getattr(each, name) for each in workers) for name in ("distinct_tokens", "distinct_text"))
    # An id is 4 bytes, and so is each logprob.
    plain = 4 * tokens + 4 * SAMPLED * turns * agents + text
    bodies = sum(each.bytes_sent for each in workers)
    peak = _peak() - before
    # What is left is the recorder's.
    workers.clear()
    return {
        "grown": memory() - before,
        "peak": peak,
        "tokens": tokens,
        "text": text,
        "plain": plain,
        "bodies": bodies,
    }


async def _all_agents(workers: list[LongAgent], turns: int, kept: list[rt.Trajectory] | None) -> None:
    await asyncio.gather(*(_run_agent(each, turns, kept) for each in workers))


async def _run_agent(worker: LongAgent, turns: int, kept: list[rt.Trajectory] | None) -> None:
    answers: deque[Exchange] = deque()
    client = async_client(iter(answers.popleft, None))
    if kept is None:
        await _run_turns(client, worker, turns, answers)
        return
    with rt.trajectory() as trajectory:
        kept.append(trajectory)
        await _run_turns(rt.wrap_openai(client), worker, turns, answers)


async def _run_turns(client: AsyncOpenAI, worker: LongAgent, turns: int, answers: deque[Exchange]) -> None:
    for _ in range(turns):
        answers.append(worker.turn())
        await post(client, answers[0])


def _resident() -> float:
    """Bytes of this process in memory; where only the peak is known, that."""
    gc.collect()
    return _status("VmRSS")


def _peak() -> float:
    return _status("VmHWM")


def _status(name: str) -> float:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        # Elsewhere than on Linux, where this would count the parent's memory too.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


def _traced() -> float:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def main(workload: str, *sizes: str) -> Measured:
    """Runs one workload."""
    kind, _, way = workload.partition("-")
    if way == "traced":
        tracemalloc.start()
    memory = _traced if way == "traced" else _resident
    if kind == "kept":
        return _keep_calls(int(sizes[0]), memory)
    return _run_agents(int(sizes[0]), int(sizes[1]), memory, recorded=way != "bare")


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
