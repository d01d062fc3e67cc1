"""Runs test targets of the Makefile, two at a time and every one of them, and ends with one table.

    python tests/everything.py core openai-1.66 rollout-trace-strands

Each NAME is the target ``test-NAME``. A target that fails does not stop the others; its output is shown in one piece
when it has ended, and of one that passes only the tests it skipped. Those that took longest the last time begin first,
so that none is left over at the end. Only the standard library: an environment that cannot be made is one of the
failures to report.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

JOBS = 2
TIMES = Path(".pytest_cache") / "everything.json"
"""Seconds that each target took the last time that it passed, by its name."""
COUNTED = ("passed", "failed", "skipped")
_SUMMARY = re.compile(r"^(?:=+ )?((?:\d+ [a-z]+(?:, )?)+) in [\d.]+s", re.MULTILINE)
_COUNT = re.compile(r"(\d+) ([a-z]+)")


class Counts(NamedTuple):
    """Tests by their outcome; an error of a fixture is a failure."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def plus(self, other: Counts) -> Counts:
        """The sums."""
        return Counts(*(one + another for one, another in zip(self, other, strict=True)))


@dataclass(frozen=True)
class Result:
    """One target that has ended."""

    name: str
    counts: Counts
    ok: bool
    seconds: float
    output: str


def counts_of(output: str) -> Counts:
    """The sum of all closing lines of pytest in an output."""
    total = Counts()
    for line in _SUMMARY.findall(output):
        found = {word: int(number) for number, word in _COUNT.findall(line)}
        failed = found.get("failed", 0) + found.get("error", 0) + found.get("errors", 0)
        total = total.plus(Counts(found.get("passed", 0), failed, found.get("skipped", 0)))
    return total


def run(name: str) -> Result:
    """Makes the environment of a target and runs its tests."""
    began = time.monotonic()
    # The flags of the make around would hand its job server to this one, and its --keep-going.
    environment = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    command = ["make", "--no-print-directory", f"test-{name}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, check=False)
    output = done.stdout.decode("utf-8", "replace")
    counts = counts_of(output)
    ok = done.returncode == 0 and counts.passed > 0
    return Result(name, counts, ok, time.monotonic() - began, output)


def times() -> dict[str, float]:
    """Those of earlier runs; none if they cannot be read."""
    try:
        return {str(name): float(seconds) for name, seconds in json.loads(TIMES.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def longest_first(names: Iterable[str]) -> list[str]:
    """Those that have never run before the others, as they are named."""
    known = times()
    return sorted(names, key=lambda name: -known.get(name, float("inf")))


def remember(results: Iterable[Result]) -> None:
    """Keeps the times of those that passed for the next run."""
    known = {**times(), **{result.name: round(result.seconds, 1) for result in results if result.ok}}
    with contextlib.suppress(OSError):
        TIMES.parent.mkdir(exist_ok=True)
        TIMES.write_text(json.dumps(known))


def shown(result: Result) -> str:
    """What is printed of a target: all of its output where it failed, else the tests that were skipped."""
    lines = result.output.splitlines()
    if result.ok:
        lines = [line for line in lines if line.startswith("SKIPPED")]
    return "".join(f"    {line}\n" for line in lines)


def table(results: Sequence[Result]) -> str:
    """One line a target, and the sums."""
    width = max(len("environment"), *(len(result.name) for result in results))
    rows = [f"{'environment':{width}}  {'passed':>7} {'failed':>7} {'skipped':>7} {'time':>7}"]
    rows += [_row(result.name, result.counts, result.seconds, width) + _mark(result) for result in results]
    return "\n".join(rows)


def _row(name: str, counts: Counts, seconds: float, width: int) -> str:
    return f"{name:{width}}  {counts.passed:7} {counts.failed:7} {counts.skipped:7} {clock(seconds):>7}"


def _mark(result: Result) -> str:
    if result.ok:
        return ""
    return "  FAILED" if result.counts.failed else "  FAILED (no test failed: its environment or its run did)"


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def main(names: Iterable[str]) -> int:
    """Runs the targets; 1 where one failed, 2 where none was named."""
    waiting = list(dict.fromkeys(names))
    if not waiting:
        print("name the targets to run, such as: core openai-1.66", file=sys.stderr)
        return 2
    began = time.monotonic()
    print(f"running {len(waiting)} sets of tests, {JOBS} at a time: {', '.join(waiting)}", flush=True)
    results: dict[str, Result] = {}
    with ThreadPoolExecutor(JOBS) as pool:
        for future in as_completed([pool.submit(run, name) for name in longest_first(waiting)]):
            result = future.result()
            results[result.name] = result
            outcome = "ok" if result.ok else "FAILED"
            progress = f"[{len(results)}/{len(waiting)}] {result.name}: {outcome}, {clock(result.seconds)}"
            print(f"{progress}\n{shown(result)}", end="", flush=True)
    ended = [results[name] for name in waiting]
    remember(ended)
    total = Counts()
    for result in ended:
        total = total.plus(result.counts)
    print(f"\n{table(ended)}\n\n{clock(time.monotonic() - began)} in all")
    failed = [result.name for result in ended if not result.ok]
    if failed:
        print(f"failed: {', '.join(failed)}; run one alone with: make test-{failed[0]}")
    # A target that failed without a failed test counts as one: the last line is what machines read.
    broken = sum(not result.ok and not result.counts.failed for result in ended)
    print(f"{total.passed} passed, {total.failed + broken} failed, {total.skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
