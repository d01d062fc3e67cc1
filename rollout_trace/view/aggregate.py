"""What many trajectories come to: groups with their rewards, histograms, counts. ``page/aggregate.js`` has the same."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from rollout_trace.view.index_store import key_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rollout_trace.view.index_store import Store
    from rollout_trace.view.query_sql import Condition

BINS = 20
MOST_GROUPS = 500
MOST_OF_A_GROUP = 1000
MOST_POINTS = 2000
_CHARTED = ("reward", "tokens", "steps", "seconds", "cost")


class Histogram(Struct):
    """Counts of values between edges; the last edge belongs to the last bin."""

    edges: list[float] = []
    counts: list[int] = []


class GroupRewards(Struct):
    """The rewards of a group, in the order of its lines; the first of them."""

    group: str
    n: int
    rewards: list[float | None]
    keys: list[str]


class Aggregate(Struct):
    """What the rows that a query finds come to. None: not known."""

    n: int
    groups: list[GroupRewards]
    """The first of them. A group is that of the trajectory, or else its task."""
    n_groups: int
    histograms: dict[str, Histogram]
    statuses: dict[str, int]
    findings: dict[str, int]
    over_time: list[tuple[float, float]]
    """Time of the start, and reward; thinned out."""
    mean_reward: float | None
    std_reward: float | None
    """The sample's."""
    cost: float | None
    """The sum; None where there are several currencies."""
    currency: str | None
    problems: list[str] = []


class _Chosen(NamedTuple):
    """The rows of a query, by column."""

    file: Sequence[int]
    line: Sequence[int]
    part: Sequence[int]
    group: Sequence[str | None]
    started: Sequence[float | None]
    reward: Sequence[float | None]
    tokens: Sequence[float | None]
    steps: Sequence[float | None]
    seconds: Sequence[float | None]
    cost: Sequence[float | None]


def aggregate(store: Store, condition: Condition) -> Aggregate:
    """Sums up the rows of an index that meet a condition."""
    where, values = condition
    names = ", ".join(f"f_{name}" for name in ("started", *_CHARTED))
    rows = store.read(
        f"SELECT file, line, part, grouped, {names} FROM rows WHERE {where} ORDER BY file, line, part", values
    )
    columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in _Chosen._fields]
    # `_CHARTED` is in the order of the fields.
    chosen = _Chosen(*columns)
    groups, n_groups = _groups(chosen)
    rewards = _known(chosen.reward)
    cost, currency = _cost(store, condition, chosen)
    return Aggregate(
        n=len(rows),
        groups=groups,
        n_groups=n_groups,
        histograms={name: histogram(getattr(chosen, name)) for name in _CHARTED},
        statuses=_counted(store, condition, "status"),
        findings=_findings(store, condition),
        over_time=_over_time(chosen),
        mean_reward=float(rewards.mean()) if len(rewards) else None,
        std_reward=float(rewards.std(ddof=1)) if len(rewards) > 1 else None,
        cost=cost,
        currency=currency,
    )


def _known(values: Iterable[float | None]) -> NDArray[np.float64]:
    import numpy as np

    found = np.array([value for value in values if value is not None], np.float64)
    return found[np.isfinite(found)]


def histogram(values: Iterable[float | None]) -> Histogram:
    """At most 20 bins of one width, which is a whole number where all values are."""
    import numpy as np

    found = _known(values)
    if not len(found):
        return Histogram()
    low, high = float(found.min()), float(found.max())
    if low == high:
        return Histogram([low, low], [len(found)])
    if not math.isfinite(high - low):
        return Histogram([low, high], [len(found)])
    whole = bool((found == np.floor(found)).all())
    width = math.ceil((high - low + 1) / BINS) if whole else (high - low) / BINS
    bins = math.ceil((high - low + 1) / width) if whole else BINS
    edges = [low + at * width for at in range(bins + 1)]
    edges[-1] = edges[-1] if whole else high
    places = np.clip(np.searchsorted(np.array(edges), found, side="right") - 1, 0, bins - 1)
    return Histogram(edges, np.bincount(places, minlength=bins).tolist())


def _groups(chosen: _Chosen) -> tuple[list[GroupRewards], int]:
    found: dict[str, GroupRewards] = {}
    places = zip(chosen.group, chosen.reward, chosen.file, chosen.line, chosen.part, strict=True)
    for name, reward, file, line, part in places:
        if name is None:
            continue
        group = found.get(name)
        if group is None:
            group = found[name] = GroupRewards(name, 0, [], [])
        group.n += 1
        if len(found) <= MOST_GROUPS and group.n <= MOST_OF_A_GROUP:
            group.rewards.append(reward)
            group.keys.append(key_of(file, line, part))
    return list(found.values())[:MOST_GROUPS], len(found)


def _counted(store: Store, condition: Condition, column: str) -> dict[str, int]:
    where, values = condition
    found = store.read(f"SELECT {column}, count(*) FROM rows WHERE {where} GROUP BY {column}", values)
    return {name: n for name, n in sorted(found, key=lambda one: -one[1]) if name is not None}


def _findings(store: Store, condition: Condition) -> dict[str, int]:
    total: Counter[str] = Counter()
    for codes, n in _counted(store, condition, "codes").items():
        for code, count in json.loads(codes).items():
            total[code] += n * count
    return dict(total.most_common())


def _over_time(chosen: _Chosen) -> list[tuple[float, float]]:
    points = sorted(
        (started, reward)
        for started, reward in zip(chosen.started, chosen.reward, strict=True)
        if started is not None and reward is not None
    )
    n = len(points)
    return points if n <= MOST_POINTS else [points[at * n // MOST_POINTS] for at in range(MOST_POINTS)]


def _cost(store: Store, condition: Condition, chosen: _Chosen) -> tuple[float | None, str | None]:
    where, values = condition
    of_costs = f"{where} AND f_cost IS NOT NULL"
    currencies = store.read(f"SELECT DISTINCT coalesce(f_currency, 'usd') FROM rows WHERE {of_costs}", values)
    if len(currencies) != 1:
        return None, None
    return math.fsum(_known(chosen.cost)), str(currencies[0][0]).upper()
