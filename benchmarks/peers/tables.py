"""Tables of the page, and the sentences on who is better, from the results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.peers.peers import OTHERS, OURS, PEERS

Results = dict[str, Any]
LEAST_ROUNDS = 3
"""Fewer show nothing of who is cheaper."""
MEASURES = {
    "cpu": ("calling thread", ("calls small", "calls large", "calls stream")),
    "process": ("whole process", ("calls small", "calls large", "calls stream")),
    "rate": ("calls a second", ("tasks small", "tasks large")),
    "tasks process": ("whole process", ("tasks small", "tasks large")),
}
KINDS = {"small": "small call", "large": "63 kB call", "stream": "100-chunk stream"}
COLUMNS = {
    "Tokens": (
        "prompt ids",
        "completion ids",
        "logprobs",
        "streamed: prompt ids",
        "streamed: completion ids",
        "streamed: logprobs",
        "n = 2",
        "extras",
    ),
    "Calls that end otherwise": (
        "stream cut by the server",
        "stream closed early",
        "HTTP 500",
        "500, then 200",
        "stream read after the block",
    ),
    "Whose call it was": (
        "thread",
        "thread pool",
        "two tasks at once",
        "messages changed after the call",
        "reward not given is None",
    ),
}


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of a Markdown table."""
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        yield f"| {' | '.join(row)} |"


def ratio_cells(results: Results, measures: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows: the ratio to the bare client, with its quartiles."""
    columns = [(measure, what) for measure in measures for what in MEASURES[measure][1]]
    heads = [f"{MEASURES[measure][0]}: {KINDS[what.split()[1]]}" for measure, what in columns]
    rows = []
    for peer in PEERS:
        found = results["calls"].get(peer.name)
        if found is not None:
            rows.append([peer.title, *(_ratio(_measured(found, measure, what)) for measure, what in columns)])
    return ["", *heads], rows


def _measured(found: dict[str, Any], measure: str, what: str) -> list[float]:
    """Quartiles of the ratio."""
    ratio: list[float] = found[what][measure.removeprefix("tasks ")]["ratio"]
    return ratio


def _ratio(found: Sequence[float]) -> str:
    low, middle, high = found
    # Of a single round there are no quartiles.
    return f"{middle:.2f}×" if low == high else f"{middle:.2f}× [{low:.2f}–{high:.2f}]"


def behaviour_table(results: Results, names: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows: yes, no, or partly with its reason."""
    rows = []
    for peer in (*OURS, *OTHERS):
        cells = results["behaviour"].get(peer.name)
        if cells is not None:
            rows.append([peer.title, *(_cell(*cells[name]) for name in names)])
    return ["", *names], rows


def _cell(value: str, why: str) -> str:
    mark = f"**{value}**" if value == "yes" else value
    return ": ".join(part for part in (mark, why) if part)


def better(results: Results) -> list[str]:
    """A sentence for each column in which another is better than all of ours."""
    return [*_cheaper(results), *_keeps_more(results), *_smaller(results)]


def _cheaper(results: Results) -> Iterator[str]:
    """Where the quartiles of another's ratio are all on the better side of those of our best.

    Not where the difference is no more than what the bare client shows against itself: that is noise.
    """
    calls = results["calls"]
    if results["rounds"] < LEAST_ROUNDS:
        return
    for measure, (where, columns) in MEASURES.items():
        more = -1 if measure == "rate" else 1
        for what in columns:
            ratios = {
                name: sorted(more * one for one in _measured(found, measure, what)) for name, found in calls.items()
            }
            ours = min((ratios[peer.name] for peer in OURS if peer.name in ratios), key=_middle, default=None)
            for peer in OTHERS:
                theirs = ratios.get(peer.name)
                noise = max(abs(one - more) for one in ratios["bare"])
                if ours is not None and theirs is not None and theirs[2] < ours[0] and ours[1] - theirs[1] > noise:
                    kind = KINDS[what.split()[1]]
                    sentence = _sentence(peer.title, measure, where, kind, abs(theirs[1]), abs(ours[1]))
                    yield sentence + _without_ids(results, peer.name, what)


def _without_ids(results: Results, name: str, what: str) -> str:
    """What makes it cheaper, where it keeps no ids of such a call."""
    column = "streamed: completion ids" if what.endswith("stream") else "completion ids"
    kept = results["behaviour"].get(name, {}).get(column, ["yes"])[0]
    return " It keeps no completion ids of that call." if kept == "no" else ""


def _middle(quartiles: Sequence[float]) -> float:
    return quartiles[1]


def _sentence(title: str, measure: str, where: str, kind: str, theirs: float, ours: float) -> str:
    if measure == "rate":
        return f"{title} makes more calls a second with 64 agents ({kind}): {theirs:.2f}×, ours {ours:.2f}×."
    many = " with 64 agents" if measure.startswith("tasks") else ""
    return f"{title} adds less to the {where}{many} ({kind}): {theirs:.2f}×, ours {ours:.2f}×."


def _keeps_more(results: Results) -> Iterator[str]:
    found = results["behaviour"]
    for name in (name for names in COLUMNS.values() for name in names):
        if any(found[peer.name][name][0] == "yes" for peer in OURS if peer.name in found):
            continue
        titles = [peer.title for peer in OTHERS if found.get(peer.name, {}).get(name, [""])[0] == "yes"]
        if titles:
            yield f"{name}: yes with {', '.join(titles)}, and not with ours."


def _smaller(results: Results) -> Iterator[str]:
    for what, unit, form in (
        ("memory", "MB for the calls that are kept", "{:.0f}"),
        ("imports", "ms to import", "{:.0f}"),
    ):
        scale = 1000 if what == "imports" else 1
        values = {
            name: scale * (value[1] if isinstance(value, list) else value)
            for name, value in results[what].items()
            if not isinstance(value, str)
        }
        ours = min((values[peer.name] for peer in OURS if peer.name in values), default=None)
        for peer in OTHERS:
            if ours is not None and values.get(peer.name, ours) < ours:
                yield f"{peer.title} takes fewer {unit}: {form.format(values[peer.name])}, ours {form.format(ours)}."
