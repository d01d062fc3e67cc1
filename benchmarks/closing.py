"""What closing trajectories costs the agent: its thread, memory over many rollouts, an event loop beside a stuck disk.

As a program it runs one workload and prints what it measured: ``python -m benchmarks.closing rollouts 20000``.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path

import rollout_trace as rt
from benchmarks import payloads
from benchmarks.clients import async_client, ensure_recorded, post, sync_client
from benchmarks.payloads import Exchange, ask
from benchmarks.report import Effort, Row, at_most, spread
from benchmarks.trajectories import LongAgent
from rollout_trace import wire
from rollout_trace.record.decoder import decoder

TURNS = 200
_HOLD_LOCK = """
import fcntl, sys, time
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX)
print(flush=True)
time.sleep(999)
"""


def run(effort: Effort) -> Iterator[Row]:
    """Rows of this section."""
    with tempfile.TemporaryDirectory() as folder:
        yield _close(Path(folder), effort)
        yield _pause(Path(folder), effort)
    yield _rollouts(effort)


def _close(folder: Path, effort: Effort) -> Row:
    """Leaving the block of a long trajectory inside a recording with a journal."""
    agent, waits, tokens = LongAgent(0), [], 0
    exchanges = [agent.turn() for _ in range(effort.size(TURNS, 60))]
    recording = rt.recording(folder / "closed.jsonl")
    with recording:
        for _ in range(effort.repeat(8)):
            answers: deque[Exchange] = deque(exchanges)
            client = rt.wrap_openai(sync_client(iter(answers.popleft, None)))
            scope = rt.trajectory()
            scope.__enter__()
            for exchange in exchanges:
                post(client, exchange)
            # As while an agent waits for its model: a thread that is at work has the interpreter 5 ms at a time.
            while decoder.backlog:
                time.sleep(0.01)
            began = time.perf_counter()
            scope.__exit__(None, None, None)
            waits.append((time.perf_counter() - began) * 1e3)
            recording.flush()
    ensure_recorded()
    tokens = agent.distinct_tokens
    what = f"closing {len(exchanges)} turns to {tokens:,} tokens, on the caller's thread"
    return at_most(what, spread(waits), 1.0, form=".3f", unit=" ms", more="wall clock, in a recording with a journal")


def _pause(folder: Path, effort: Effort) -> Row:
    """The longest pause of an event loop of agents, while a stopped process holds the lock of their file."""
    path, seconds = folder / "locked.jsonl", effort.size(60, 5)
    path.touch()
    holder = subprocess.Popen([sys.executable, "-c", _HOLD_LOCK, str(path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    os.kill(holder.pid, signal.SIGSTOP)
    quiet = logging.getLogger("rollout_trace")
    quiet.disabled = True
    try:
        pause, rollouts = asyncio.run(_agents_beside(path, seconds, holder))
        bare, _ = asyncio.run(_agents_beside(None, min(seconds, 5), None))
    finally:
        quiet.disabled = False
        holder.kill()
        holder.wait()
    written = sum(1 for _ in rt.read(path))
    if written != rollouts:
        raise RuntimeError(f"{rollouts} rollouts, and {written} in the file")
    more = f"{rollouts:,} rollouts, all in the file in the end; without recording {bare:.1f} ms"
    what = f"longest pause of an event loop, the file locked for {seconds} s"
    return at_most(what, spread([pause]), 20, form=".1f", unit=" ms", more=more)


async def _agents_beside(
    path: Path | None, seconds: float, holder: subprocess.Popen[bytes] | None
) -> tuple[float, int]:
    exchanges, count = cycle([payloads.large(seed) for seed in range(20)]), 0
    sent: deque[Exchange] = deque()
    client = async_client(iter(sent.popleft, None))
    end = time.perf_counter() + seconds

    async def agents() -> None:
        nonlocal count
        while time.perf_counter() < end:
            async with rt.trajectory():
                sent.append(next(exchanges))
                await post(client, sent[0])
            count += 1
            await asyncio.sleep(0.01)

    # What is imported on first use (numpy) stops a loop once a process, and so does each full garbage collection, by
    # what the whole process holds: 50 to 100 ms here. Neither is what a locked file costs.
    _decode_one()
    gc.collect()
    gc.freeze()
    if path is None:
        pause = await _longest_pause(agents())
        return pause, count
    client = rt.wrap_openai(client)
    async with rt.recording(path, lock_timeout=1.0):
        pause = await _longest_pause(agents())
        if holder is not None:
            holder.kill()
    return pause, count


def _decode_one() -> None:
    """Decodes one exchange."""
    one = payloads.large()
    wire.decode("openai.chat", one.request, one.pieces[0], content_type=one.content_type)


async def _longest_pause(work: Coroutine[object, object, None]) -> float:
    """Milliseconds by which the loop was late at most, while the work ran."""
    task, longest = asyncio.ensure_future(work), 0.0
    while not task.done():
        began = time.perf_counter()
        await asyncio.sleep(0.001)
        longest = max(longest, time.perf_counter() - began - 0.001)
    await task
    return longest * 1e3


def _rollouts(effort: Effort) -> Row:
    """Memory of a process over many rollouts, as a line through its last three quarters."""
    count = effort.size(20_000, 4_000)
    command = [sys.executable, "-m", "benchmarks.closing", "rollouts", str(count)]
    output = subprocess.run(command, check=True, capture_output=True, cwd=Path(__file__).parents[1]).stdout
    found = json.loads(output)
    more = f"resident {found['first'] / 1e6:.1f} MB after a quarter, {found['last'] / 1e6:.1f} MB at the end"
    slope = (found["last"] - found["first"]) / (count * 3 / 4)
    return at_most(f"memory a rollout, over {count:,}", spread([slope]), 100, form=".0f", unit=" B", more=more)


# In the child.


def _run_rollouts(count: int) -> dict[str, float]:
    exchanges, first = cycle([payloads.small()]), 0.0
    client = rt.wrap_openai(sync_client(exchanges))
    one = payloads.small()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        recording = rt.recording(Path(folder) / "runs.jsonl")
        stack.enter_context(recording)
        for number in range(count):
            with rt.trajectory(task=f"task/{number}", metadata={"number": number}) as trajectory:
                ask(client, one)
                trajectory.reward = 1.0
            if number % 20 == 0:
                # Agents wait for their model, and the thread keeps up; this loop waits for nothing, and would let the
                # queue fill to its limit.
                recording.flush()
            if number == count // 4:
                first = _resident()
        last = _resident()
    ensure_recorded()
    return {"first": first, "last": last}


def _resident() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) * 1024


if __name__ == "__main__":
    print(json.dumps(_run_rollouts(int(sys.argv[2]))))
