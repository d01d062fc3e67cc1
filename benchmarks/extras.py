"""Routed experts and alternatives: decoded, written, read and kept; in MB of their arrays per second of CPU time.

As a program it runs one workload and prints what it measured: ``python -m benchmarks.extras experts 20000 1``.
"""

from __future__ import annotations

import base64
import gc
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rollout_trace as rt
from benchmarks.report import Effort, Row, at_least, at_most, spread
from rollout_trace import wire

LAYERS, K = 48, 8
SPEED, MEMORY, LINEAR = 150, 1.3, 1.1
MB = 1e6
Measured = dict[str, float]


def run(effort: Effort) -> Iterator[Row]:
    """Rows of this section."""
    tokens, turns = effort.size(20_000, 4_000), 10
    one = _child("experts", tokens, 1, effort.repeat(8))
    many = _child("experts", tokens // turns, turns, effort.repeat(8))
    for name, found in ((f"{tokens:,} tokens in one answer", one), (f"{tokens:,} tokens in {turns} turns", many)):
        more = f"{found['sent'] / MB:,.0f} MB of arrays sent, {found['distinct'] / MB:,.1f} MB distinct"
        yield at_least(f"decoded, {name}", spread([found["decoded"]]), SPEED, form=".0f", unit=" MB/s", more=more)
        more = f"{found['line'] / MB:,.1f} MB a line"
        yield at_least(f"written, {name}", spread([found["written"]]), SPEED, form=".0f", unit=" MB/s", more=more)
        yield at_least(f"read, {name}", spread([found["read"]]), SPEED, form=".0f", unit=" MB/s")
        for way in ("kept", "kept-read"):
            what = "memory of the steps" if way == "kept" else "memory of the steps that were read"
            yield at_most(
                f"{what}, {name}", spread([found[way]]), MEMORY, form=".2f", unit="×", more="beside the arrays"
            )
    linear = many["line"] / one["line"]
    yield at_most("line of the turns, beside that of one answer", spread([linear]), LINEAR, form=".2f", unit="×")
    yield from _alternatives(effort)


def _alternatives(effort: Effort) -> Iterator[Row]:
    tokens = effort.size(20_000, 4_000)
    found = _child("alternatives", tokens, 20, 1)
    more = (
        f"{found['sent'] / MB:,.0f} MB of JSON; decoded in {found['decode']:.2f} s, written in {found['write']:.2f} s, "
    )
    more += f"read in {found['read']:.2f} s"
    what = f"{tokens:,} tokens with 20 alternatives, longest time in which no other thread ran"
    yield at_most(what, spread([found["pause"] * 1e3]), None, form=".0f", unit=" ms", more=more)


def _child(workload: str, *sizes: int) -> Measured:
    command = [sys.executable, "-m", "benchmarks.extras", workload, *map(str, sizes)]
    output = subprocess.run(command, check=True, capture_output=True, cwd=Path(__file__).parents[1]).stdout
    measured: Measured = json.loads(output)
    return measured


# In the child.


def _exchanges(tokens: int, turns: int) -> list[tuple[bytes, bytes]]:
    """A run of ``turns`` answers of ``tokens`` tokens, each with the experts of all that came before it."""
    import numpy as np

    generator = np.random.default_rng(0)
    prompt, length = 100, 100 + tokens * turns
    ids = generator.integers(0, 150_000, length).tolist()
    experts = generator.integers(0, 128, (length, LAYERS, K)).astype(np.uint8)
    found = []
    for turn in range(turns):
        start, end = prompt + turn * tokens, prompt + (turn + 1) * tokens
        file = io.BytesIO()
        np.save(file, experts[: end - 1])
        answer = {
            "id": f"chatcmpl-{turn}",
            "model": "m",
            "prompt_token_ids": ids[:start],
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": f"answer {turn}"},
                    "finish_reason": "stop",
                    "token_ids": ids[start:end],
                    "routed_experts": base64.b64encode(file.getvalue()).decode(),
                }
            ],
            "usage": {"prompt_tokens": start, "completion_tokens": end - start},
        }
        request = {"model": "m", "messages": [{"role": "user", "content": f"question {turn}"}]}
        found.append((json.dumps(request).encode(), json.dumps(answer).encode()))
    return found


def _experts(tokens: int, turns: int, rounds: int) -> Measured:
    exchanges = _exchanges(tokens, turns)
    steps = [_recorded(*one) for one in exchanges]
    sent = float(sum(_size(step) for step in steps))
    distinct = float(_size(steps[-1]))
    trajectory = _trajectory(exchanges)
    line = _line(trajectory)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rollouts.jsonl"
        seconds: dict[str, list[float]] = {"decoded": [], "written": [], "read": []}
        for _ in range(rounds + 1):
            path.unlink(missing_ok=True)
            began = time.thread_time()
            _trajectory(exchanges)
            decoded = time.thread_time()
            with rt.JSONLWriter(path) as writer:
                writer.write(trajectory)
            written = time.thread_time()
            list(rt.read(path))
            seconds["decoded"].append(decoded - began)
            seconds["written"].append(written - decoded)
            seconds["read"].append(time.thread_time() - written)
        kept = _kept(lambda: _trajectory(exchanges)) / distinct
        read = _kept(lambda: list(rt.read(path))) / distinct
    speeds = {
        name: (sent if name == "decoded" else distinct) / sorted(each[1:])[rounds // 2] / MB
        for name, each in seconds.items()
    }
    return {**speeds, "sent": sent, "distinct": distinct, "line": float(len(line)), "kept": kept, "kept-read": read}


def _recorded(request: bytes, answer: bytes) -> rt.Step:
    (step,) = wire.decode("openai.chat", request, answer, content_type="application/json")
    return step


def _trajectory(exchanges: list[tuple[bytes, bytes]]) -> rt.Trajectory:
    """The run as it is recorded: what its answers repeat is stored once."""
    from rollout_trace.clients import recorder
    from rollout_trace.record.settings import Settings

    settings = Settings(lambda method, path: None)
    with rt.trajectory() as trajectory:
        for request, answer in exchanges:
            call = recorder.begin(settings, "openai.chat")
            recorder.attempt(call, request)
            recorder.answered(call, 200, {"content-type": "application/json"})
            recorder.receive(call, answer)
            recorder.ended(call)
    if any(step.routed_experts is None for step in trajectory.steps):
        raise RuntimeError(f"nothing to measure: {[step.extra_issues for step in trajectory.steps]}")
    return trajectory


def _line(trajectory: rt.Trajectory) -> bytes:
    from rollout_trace.file.encode import encode

    return encode(trajectory)


def _size(step: rt.Step) -> int:
    if step.routed_experts is None:
        raise RuntimeError(f"nothing to measure: {step.extra_issues}")
    return int(step.routed_experts.nbytes)


def _kept(make: Any) -> float:
    """Bytes that what a function returns keeps in memory."""
    make()
    gc.collect()
    tracemalloc.start()
    kept = make()
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del kept
    return float(grown)


def _with_alternatives(tokens: int, k: int) -> tuple[bytes, bytes]:
    """An answer with ``k`` alternatives at each token, and its request."""
    tops = [{"token": f" word{n}", "logprob": -0.125 * n, "bytes": [32, 119, 111, 114, 100]} for n in range(k)]
    entry = {"token": " word0", "logprob": -0.5, "bytes": [32], "top_logprobs": tops}
    answer = {
        "id": "chatcmpl-1",
        "model": "m",
        "prompt_token_ids": [1, 2, 3],
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "words"},
                "finish_reason": "stop",
                "token_ids": list(range(tokens)),
                "logprobs": {"content": [entry] * tokens},
            }
        ],
    }
    return b'{"model":"m","messages":[],"logprobs":true}', json.dumps(answer).encode()


def _pauses(tokens: int, k: int, _: int) -> Measured:
    """How long another thread waits at most while an answer with alternatives is decoded, written and read."""
    request, answer = _with_alternatives(tokens, k)
    longest = [0.0]
    stop = threading.Event()

    def tick() -> None:
        last = time.perf_counter()
        while not stop.wait(0.001):
            now = time.perf_counter()
            longest[0] = max(longest[0], now - last)
            last = now

    thread = threading.Thread(target=tick)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rollouts.jsonl")
        thread.start()
        began = time.perf_counter()
        step = _recorded(request, answer)
        decoded = time.perf_counter()
        with rt.JSONLWriter(path) as writer:
            writer.write(rt.Trajectory(steps=[step]))
        written = time.perf_counter()
        list(rt.read(path))
        ended = time.perf_counter()
        stop.set()
        thread.join()
    times = {"decode": decoded - began, "write": written - decoded, "read": ended - written}
    return {**times, "sent": float(len(answer)), "pause": longest[0]}


def main(workload: str, *sizes: str) -> Measured:
    """Runs one workload."""
    return {"experts": _experts, "alternatives": _pauses}[workload](*map(int, sizes))


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
