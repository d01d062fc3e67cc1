"""Timing several ways of doing one thing in one run, so that what the machine does meanwhile hits all of them."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from statistics import median

Action = Callable[[], object]


@dataclass(slots=True)
class Timings:
    """Seconds of one action: the median of each round."""

    cpu: list[float] = field(default_factory=list)
    """Of the calling thread."""
    wall: list[float] = field(default_factory=list)


def settle() -> None:
    """Takes what importing made out of the collector's sight.

    A full collection walks some 80,000 objects of the SDK: it would hit one action at random, for three calls' time.
    """
    gc.collect()
    gc.freeze()


def interleave(
    actions: Mapping[str, Action],
    *,
    rounds: int,
    times: int,
    around: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> dict[str, Timings]:
    """Runs every action ``times`` times a round, one after the other in random order; the first round is thrown away.

    In a fixed order the collector, which runs every so many allocations, would keep hitting the same action.
    """
    settle()
    found = {name: Timings() for name in actions}
    order = random.Random(0)
    for number in range(rounds + 1):
        with around():
            cpu, wall = _round(actions, times, order)
        if number:
            for name, timings in found.items():
                timings.cpu.append(median(cpu[name]))
                timings.wall.append(median(wall[name]))
    return found


def _round(
    actions: Mapping[str, Action], times: int, order: random.Random
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    names = list(actions)
    cpu: dict[str, list[float]] = {name: [] for name in names}
    wall: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    for _ in range(times):
        order.shuffle(names)
        for name in names:
            action = actions[name]
            began, cpu_began = time.perf_counter(), time.thread_time()
            action()
            cpu[name].append(time.thread_time() - cpu_began)
            wall[name].append(time.perf_counter() - began)
    return cpu, wall


def blocks(actions: Mapping[str, Action], *, rounds: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Seconds of each action in each round by a clock, in turns; the first round is thrown away."""
    settle()
    found: dict[str, list[float]] = {name: [] for name in actions}
    names = list(actions)
    for number in range(rounds + 1):
        names.reverse()
        for name in names:
            gc.collect()
            began = clock()
            actions[name]()
            if number:
                found[name].append(clock() - began)
    return found
