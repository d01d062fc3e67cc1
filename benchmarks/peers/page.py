"""`docs/comparison.md`, from the results: nothing of it is written by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.peers import OTHERS, OURS, PEERS, PROXIES, Peer
from benchmarks.peers.tables import COLUMNS, behaviour_table, better, ratio_cells, table
from benchmarks.peers.words import BEHAVIOUR, BETTER, METHOD, NOT_MEASURED, OTHER_STRENGTHS, PROXY, TASKS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "comparison.md"
Results = dict[str, Any]


def write_page(results: Results) -> None:
    """Writes it."""
    PAGE.write_text(render(results))


def render(results: Results) -> str:
    """The page."""
    return "\n".join(_lines(results)).rstrip() + "\n"


def _lines(results: Results) -> Iterator[str]:
    load = results["load"]
    yield "# Comparison"
    yield ""
    yield (
        "What other recorders of model calls cost and keep, beside this one. Everything on this page is made by "
        "`make bench-peers` from one run; a test compares the page with its results, `benchmarks/peers/results.json`."
    )
    yield ""
    python = results["versions"]["bare"]["python"]
    yield (
        f"Run of {results['begun']}: {results['machine']}, Python {python}, {results['rounds']} "
        f"round{'s' * (results['rounds'] != 1)}, load {load[0]:.1f} at the beginning and {max(load):.1f} at most."
    )
    if max(load) > BUSY:
        yield "Other work ran on the machine: ratios are rough, times and calls a second worse than on an idle one."
    if "note" in results:
        yield results["note"]
    yield from ("", "## Who", "")
    yield from _who(results)
    yield from ("", "## What a call costs", "", METHOD, "")
    yield from table(*ratio_cells(results, ("cpu", "process")))
    yield from ("", TASKS, "")
    yield from table(*ratio_cells(results, ("rate", "tasks process")))
    yield from ("", "## Memory and import", "")
    yield from _memory_and_imports(results)
    yield from ("", "## What is kept", "", BEHAVIOUR, "")
    for title, names in COLUMNS.items():
        yield from (f"### {title}", "")
        yield from table(*behaviour_table(results, names))
        yield ""
    yield from ("## Beside a proxy", "")
    yield from _proxies(results)
    yield from ("", "## Where another is better", "", BETTER, "")
    yield from (f"- {sentence}" for sentence in (*better(results), *OTHER_STRENGTHS))
    yield from ("", "## Not in the tables", "")
    yield from (f"- {sentence}" for sentence in NOT_MEASURED)
    for name, reason in results["missing"].items():
        yield f"- {name} could not be run: {reason}."


NAMES = {"small": "small call", "large": "63 kB answer", "stream": "100-chunk stream"}
BUSY = 2.5
"""A load from which on the page has a warning."""


def versions_of(results: Results, peer: Peer) -> str:
    """Names and versions of a peer's packages, with the openai client beside them."""
    found = results["versions"].get(peer.name, {})
    own = [f"{name} {found[name]}" for name in peer.packages if name in found]
    return ", ".join([*own, f"openai {found['openai']}"] if "openai" in found else own)


def _who(results: Results) -> Iterator[str]:
    rows = [[peer.title, versions_of(results, peer), peer.kept] for peer in PEERS if peer.name in results["versions"]]
    yield from table(["", "versions", "its records are kept in"], rows)


def _memory_and_imports(results: Results) -> Iterator[str]:
    yield (
        f"*Memory*: growth of the process that keeps {results['kept']:,} of the 63 kB calls, all different, beyond "
        "that of the bare client. *Import*: CPU time of importing it after `openai`, with compiled modules; median "
        "and quartiles."
    )
    yield ""
    rows = []
    for peer in (*OURS, *OTHERS):
        memory, imports = results["memory"].get(peer.name), results["imports"].get(peer.name)
        if peer.name in results["versions"]:
            rows.append([peer.title, _memory(peer, memory), _seconds(imports)])
    yield from table(["", f"{results['kept']:,} calls kept", "import"], rows)


def _memory(peer: Peer, value: float | str | None) -> str:
    if not peer.memory:
        return f"kept in {peer.kept}"
    return f"{value:.0f} MB" if isinstance(value, float) else f"not measured: {value}"


def _seconds(values: Sequence[float] | None) -> str:
    if values is None:
        return "could not be measured"
    low, middle, high = (value * 1000 for value in values)
    return f"{middle:,.0f} ms [{low:,.0f}–{high:,.0f}]"


_KINDS = ("small", "large", "stream")


def _proxies(results: Results) -> Iterator[str]:
    yield from (PROXY, "")
    heads = ["proxy", *(f"its CPU time: {NAMES[kind]}" for kind in _KINDS)]
    heads += ["added: small, 63 kB, stream", "calls/s: small, 63 kB", "ids and logprobs pass"]
    yield from table(heads, [row for name in ("direct", *PROXIES) if (row := _proxy_row(results, name))])
    yield from ("", *_in_process(results))


def _proxy_row(results: Results, name: str) -> list[str]:
    found = results.get("proxies", {}).get(name)
    if found is None:
        return []
    title, packages = PROXIES.get(name, ("none", ()))
    versions = ", ".join(results["versions"]["proxies"][package] for package in packages[:1])
    row = [f"{title} {versions}".strip()]
    if "missing" in found:
        return [*row, f"could not be run: {found['missing']}", *[""] * (len(_KINDS) + 2)]
    row += [f"{found[kind]['proxy cpu'][1] * 1e3:.1f} ms" if name != "direct" else "" for kind in _KINDS]
    added = ", ".join(f"{found[kind]['added'][1] * 1e3:+.1f}" for kind in _KINDS)
    row.append("" if name == "direct" else f"{added} ms")
    row.append(", ".join(f"{found[kind]['rate'][1]:,.0f}" for kind in _KINDS if "rate" in found[kind]))
    passed = {found[kind]["passed"] for kind in _KINDS}
    words = [f"{NAMES[kind]}: {found[kind]['passed']}" for kind in _KINDS]
    return [*row, passed.pop() if len(passed) == 1 else "; ".join(words)]


def _in_process(results: Results) -> Iterator[str]:
    calls = results["calls"].get("ours")
    if calls is not None:
        added = {kind: calls[f"calls {kind}"]["process"]["added"][1] * 1e3 for kind in ("small", "large")}
        yield (
            f"Recording in the process takes {added['small']:.2f} ms of CPU time for the small call and "
            f"{added['large']:.2f} ms for the 63 kB answer, decoding included. There is no hop, no port for each run, "
            "and no run id in the base URL: a call belongs to the trajectory that is open where it begins."
        )
