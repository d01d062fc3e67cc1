"""What `rt.instrument` adds where threads, tasks and processes are started: CPU time of the thread that starts them."""

from __future__ import annotations

import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import rollout_trace as rt
from benchmarks.report import Effort, Row, at_most, differences, spread
from benchmarks.timing import interleave


def run(effort: Effort) -> Iterator[Row]:
    """Rows of this section."""
    with (
        tempfile.TemporaryDirectory() as folder,
        rt.instrument(),
        rt.recording(Path(folder) / "rollouts.jsonl"),
        ThreadPoolExecutor(1) as pool,
    ):
        pool.submit(int).result()
        yield from _rows(effort, pool)


def _rows(effort: Effort, pool: ThreadPoolExecutor) -> Iterator[Row]:
    plain_start, plain_submit = _plain(threading.Thread.start), _plain(ThreadPoolExecutor.submit)
    plain_callback, plain_init = _plain(Future.add_done_callback), _plain(subprocess.Popen.__init__)

    class PlainPopen(subprocess.Popen[bytes]):
        __init__ = plain_init

    def thread(start: Callable[[threading.Thread], None]) -> None:
        one = threading.Thread(target=int)
        start(one)
        one.join()

    def callback(add: Callable[[Any, Any], None]) -> None:
        add(Future(), int)

    def process(kind: Any) -> None:
        kind(["/bin/true"]).wait()

    cases: list[tuple[str, int, Callable[[], object], Callable[[], object]]] = [
        ("Thread.start, and join", 200, lambda: thread(plain_start), lambda: thread(threading.Thread.start)),
        ("ThreadPoolExecutor.submit, and result", 500, lambda: plain_submit(pool, int).result(),
         lambda: pool.submit(int).result()),
        ("Future.add_done_callback", 500, lambda: callback(plain_callback), lambda: callback(Future.add_done_callback)),
        ("subprocess.Popen, and wait", 20, lambda: process(PlainPopen), lambda: process(subprocess.Popen)),
    ]  # fmt: skip
    for what, times, plain, ours in cases:
        yield _row(effort, f"{what}, inside a trajectory", times, plain, ours, in_trajectory=True)
        yield _row(effort, f"{what}, outside", times, plain, ours, in_trajectory=False)


def _plain(function: Any) -> Any:
    """The function that was replaced."""
    return function.__wrapped__


def _row(
    effort: Effort,
    what: str,
    times: int,
    plain: Callable[[], object],
    ours: Callable[[], object],
    *,
    in_trajectory: bool,
) -> Row:
    def measured() -> Any:
        return interleave({"plain": plain, "ours": ours}, rounds=effort.repeat(12), times=effort.times(times))

    if in_trajectory:
        with rt.trajectory():
            found = measured()
    else:
        # Where nothing is recorded: neither is a recording current.
        found = _outside(measured)
    added = differences([1e6 * one for one in found["ours"].cpu], [1e6 * one for one in found["plain"].cpu])
    bare = spread(1e6 * one for one in found["plain"].cpu)
    return at_most(what, added, None, form="+.1f", unit=" µs", more=f"plain {bare.show('.1f')} us")


def _outside(function: Callable[[], Any]) -> Any:
    """Runs it in a thread of an empty context."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()), name="rollout_trace benchmark")
    thread.start()
    thread.join()
    return found[0]
