"""What many trajectories come to: groups with their rewards, histograms, counts. ``page/aggregate.js`` has the same."""

from __future__ import annotations

import json
import math
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

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
_COLUMNS = (*_CHARTED, "started")
_NAN = float("nan")


class Histogram(Struct):
    """Counts of values between edges; the last edge belongs to the last bin, where not all values are whole."""

    edges: list[float] = []
    counts: list[int] = []
    whole: bool = False
    """Whether all values are whole: then the last edge is above every value."""


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
    least_reward: float | None
    most_reward: float | None
    std_reward: float | None
    """The sample's."""
    cost: float | None
    """The sum; None where there are several currencies."""
    currency: str | None
    problems: list[str] = []


class _Groups:
    """The groups of the rows that are added."""

    def __init__(self) -> None:
        self.first: dict[str, GroupRewards] = {}
        self._others: set[str] = set()

    def __len__(self) -> int:
        return len(self.first) + len(self._others)

    def add(self, name: str, reward: float | None, place: tuple[int, int, int]) -> None:
        """Adds a row."""
        group = self.first.get(name)
        if group is None:
            if len(self.first) == MOST_GROUPS:
                self._others.add(name)
                return
            group = self.first[name] = GroupRewards(name, 0, [], [])
        group.n += 1
        if group.n <= MOST_OF_A_GROUP:
            group.rewards.append(reward)
            group.keys.append(key_of(*place))


def aggregate(store: Store, condition: Condition) -> Aggregate:
    """Sums up the rows of an index that meet a condition."""
    where, values = condition
    names = ", ".join(f"f_{name}" for name in _COLUMNS)
    columns = {name: array("d") for name in _COLUMNS}
    # Bound methods, because this runs for each of maybe hundreds of thousands of rows.
    appends = [column.append for column in columns.values()]
    groups, n = _Groups(), 0
    for file, line, part, group, *numbers in store.each(
        f"SELECT file, line, part, grouped, {names} FROM rows WHERE {where} ORDER BY id", values
    ):
        n += 1
        if group is not None:
            groups.add(group, numbers[0], (file, line, part))
        for append, number in zip(appends, numbers, strict=True):
            append(_NAN if number is None else number)
    rewards = _known(columns["reward"])
    cost, currency = _cost(store, condition, columns["cost"])
    return Aggregate(
        n=n,
        groups=list(groups.first.values()),
        n_groups=len(groups),
        histograms={name: histogram(columns[name]) for name in _CHARTED},
        statuses=_counted(store, condition, "status"),
        findings=_findings(store, condition),
        over_time=_over_time(columns["started"], columns["reward"]),
        mean_reward=float(rewards.mean()) if len(rewards) else None,
        least_reward=float(rewards.min()) if len(rewards) else None,
        most_reward=float(rewards.max()) if len(rewards) else None,
        std_reward=float(rewards.std(ddof=1)) if len(rewards) > 1 else None,
        cost=cost,
        currency=currency,
    )


def _known(values: Sequence[float]) -> NDArray[np.float64]:
    """The values that are finite."""
    import numpy as np

    found = np.array(values, np.float64)
    return found[np.isfinite(found)]


def histogram(values: Sequence[float]) -> Histogram:
    """The histogram of the values that are finite: at most 20 bins of one width, a whole one where all values are."""
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
    return Histogram(edges, np.bincount(places, minlength=bins).tolist(), whole)


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


def _over_time(started: Sequence[float], rewards: Sequence[float]) -> list[tuple[float, float]]:
    import numpy as np

    points = np.column_stack([np.array(started, np.float64), np.array(rewards, np.float64)])
    points = points[np.isfinite(points).all(axis=1)]
    points = points[np.argsort(points[:, 0], kind="stable")]
    if len(points) > MOST_POINTS:
        points = points[np.arange(MOST_POINTS) * len(points) // MOST_POINTS]
    return [(float(time), float(reward)) for time, reward in points]


def _cost(store: Store, condition: Condition, costs: Sequence[float]) -> tuple[float | None, str | None]:
    where, values = condition
    of_costs = f"{where} AND f_cost IS NOT NULL"
    currencies = store.read(f"SELECT DISTINCT coalesce(f_currency, 'usd') FROM rows WHERE {of_costs}", values)
    if len(currencies) != 1:
        return None, None
    return math.fsum(_known(costs)), str(currencies[0][0]).upper()
