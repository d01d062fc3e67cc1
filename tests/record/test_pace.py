"""How background threads let the agent's threads run: while they keep up, between calls and between steps."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import pytest

from benchmarks.trajectories import many_turns
from rollout_trace import _threads
from rollout_trace.file.encode import encode
from rollout_trace.record.decoder import Decoder

Result = TypeVar("Result")


def on_a_polite_thread(work: Callable[[], Result]) -> Result:
    found: list[Result] = []

    def run() -> None:
        _threads.set_polite(True)
        found.append(work())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def test_the_items_are_the_same() -> None:
    """As they come; a thread that is not polite gets what it gave."""
    items = iter(range(1000))
    assert _threads.in_slices(items) is items
    assert on_a_polite_thread(lambda: list(_threads.in_slices(items))) == list(range(1000))
    assert list(items) == []


def test_the_line_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a break between any two steps."""
    monkeypatch.setattr(_threads, "SLICE", 0.0)
    trajectory = many_turns(30)
    assert on_a_polite_thread(partial(encode, trajectory)) == encode(trajectory)


@pytest.mark.parametrize("is_polite", [True, False])
def test_a_thread_that_waits_runs_meanwhile(monkeypatch: pytest.MonkeyPatch, is_polite: bool) -> None:
    """Although its switch interval is far from over; beside a thread of the agent's it waits on."""
    monkeypatch.setattr(_threads, "SLICE", 0.0)
    begin, has_run = threading.Event(), threading.Event()

    def wait() -> None:
        begin.wait()
        has_run.set()

    def work() -> bool:
        _threads.set_polite(is_polite)
        begin.set()
        for _ in range(20_000):
            _threads.give_way()
            if has_run.is_set():
                return True
        return False

    waiting = threading.Thread(target=wait)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)
    try:
        waiting.start()
        assert on_a_polite_thread(work) is is_polite
    finally:
        sys.setswitchinterval(interval)
        begin.set()
        waiting.join()


@pytest.mark.parametrize(("size", "is_polite"), [(1, True), (_threads.POLITE_LIMIT, False)])
def test_the_decoder_is_polite_while_it_keeps_up(size: int, is_polite: bool) -> None:
    """Past the limit it no longer waits for others."""
    found: list[bool] = []
    done = threading.Event()

    def settle() -> None:
        found.append(_threads._background.is_polite)
        done.set()

    call: Any = object()
    decoder = Decoder()
    assert decoder.submit(call, size, settle)
    assert done.wait(30)
    decoder._stop()
    assert found == [is_polite]
