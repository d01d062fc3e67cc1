"""The overview of recorded files, from the page's server and from one file."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import rollout_trace as rt
from rollout_trace.view.static import write_static
from rollout_trace.view.trajectory_view import TrajectoryView
from tests.page.conftest import Served, Show
from tests.view.files import run, write
from tests.view.pictures import family

Serve = Callable[..., Served]


def opened(pages: Any, address: str, place: str = "") -> Any:
    own = address.rpartition("/")[0] + "/"
    page = pages.new(own=own)
    page.goto(address + place)
    page.locator("tbody tr").first.wait_for()
    return page


def what_is_shown(page: Any) -> dict[str, Any]:
    """What the overview says, without its numbers' widths."""
    return {
        "figures": page.locator("p.figures").inner_text(),
        "tallies": page.locator(".tallies").inner_text(),
        "bars": page.locator("g.bar title").all_text_contents(),
        "rows": page.locator("tbody tr").all_inner_texts(),
    }


def test_a_recorded_file_is_listed_and_grows(pages: Any, serve: Serve, tmp_path: Path) -> None:
    path = write(tmp_path / "rollouts.jsonl", [run(i) for i in range(12)])
    page = opened(pages, serve(path).address)
    page.get_by_text("12 trajectories").wait_for()
    assert "mean reward 0.5" in page.locator("p.figures").inner_text()
    write(path, [run(12, name="newcomer")])
    page.get_by_role("link", name="newcomer").wait_for()
    rt.annotate(path, "t0", metadata={"note": "look again"})
    page.get_by_text("look again").wait_for()


def test_text_is_searched_in_the_files(pages: Any, serve: Serve, tmp_path: Path) -> None:
    path = write(tmp_path / "rollouts.jsonl", [run(i) for i in range(12)])
    page = opened(pages, serve(path).address)
    page.get_by_role("searchbox").fill('"answer 7" in text')
    page.get_by_text("1 of 12 trajectories").wait_for()
    page.locator("tbody tr").get_by_text("#3").wait_for()


def test_every_column_sorts(pages: Any, serve: Serve, tmp_path: Path) -> None:
    page = opened(pages, serve(write(tmp_path / "rollouts.jsonl", [run(i) for i in range(5)])).address)
    page.get_by_role("button", name="Columns").click()
    for box in page.get_by_role("checkbox").all():
        box.check()
    page.keyboard.press("Escape")
    for column in page.get_by_role("columnheader").all():
        column.get_by_role("button").click()
        column.and_(page.locator("th[aria-sort$=cending]")).wait_for()
        page.locator(".view-overview:not([aria-busy])").wait_for()
    assert page.locator(".problems").inner_text() == page.locator("#banner").inner_text() == ""


def test_one_file_shows_the_same_as_the_server(pages: Any, serve: Serve, tmp_path: Path) -> None:
    some = [run(i) for i in range(40)]
    error = rt.ErrorInfo(type="ValueError", message="it broke")
    some += [run(40, name="odd", status="error", error=error, reward=None, group_id=None, task=None)]
    path = write(tmp_path / "rollouts.jsonl", some)
    some = list(rt.read(path))
    out = tmp_path / "page.html"
    write_static(out, ((str(path), one) for one in some), title="rollouts.jsonl")
    served, written = opened(pages, serve(path).address), opened(pages, out.as_uri())
    assert what_is_shown(written) == what_is_shown(served)
    for place in ("#/?q=reward+>+0", "#/?sort=-reward", "#/?sort=task", "#/?q=odd"):
        for page in (served, written):
            page.goto(page.url.partition("#")[0] + place)
            page.reload()
            page.locator("tbody tr").first.wait_for()
        assert what_is_shown(written) == what_is_shown(served)


def test_tokens_of_one_file_are_as_recorded(pages: Any, tmp_path: Path) -> None:
    some = family()
    out = tmp_path / "page.html"
    write_static(out, (("a.jsonl", one) for one in some), title="a.jsonl")
    page = pages.new(own=out.parent.as_uri())
    page.goto(out.as_uri())
    for at, trajectory in enumerate(some):
        steps = page.evaluate("(key) => RT.data.steps(key, 0, 50)", f"0-{at}")
        for found, view in zip(steps, TrajectoryView(trajectory).steps(), strict=True):
            wanted, tokens = msgspec.to_builtins(view.tokens) or {}, found.get("tokens") or {}
            for name in ("n", "ids", "texts", "logprobs"):
                assert tokens.get(name) == wanted.get(name)
            assert tokens.get("entropy", []) == pytest.approx(wanted.get("entropy", []), abs=6e-4)
            for mine, theirs in zip(tokens.get("alternatives", []), wanted.get("alternatives", []), strict=True):
                assert [one[:2] for one in mine] == [list(one[:2]) for one in theirs]
                chances = [[math.exp(one[2]) for one in alternatives] for alternatives in (mine, theirs)]
                assert chances[0] == pytest.approx(chances[1], abs=6e-4)


def test_histograms(show: Show) -> None:
    page, _ = show([])
    values: list[list[float]] = [
        [], [math.nan], [2, 2, math.nan], list(range(41)), [0.0, 0.25, 1.0],
        *(one for seed in range(8) for one in _values(random.Random(seed))),
    ]  # fmt: skip
    found = page.evaluate(
        "(all) => all.map((values) => RT.aggregate(values.map((cost) =>"
        " ({ status: 'x', findings: {}, cost }))).histograms.cost)",
        values,
    )
    nothing = {"edges": [], "counts": [], "whole": False}
    assert found[:3] == [nothing, nothing, {"edges": [2, 2], "counts": [2], "whole": False}]
    assert (found[3]["edges"][:3], sum(found[3]["counts"])) == ([0, 3, 6], 41)
    assert found[4]["counts"] == [1, 0, 0, 0, 0, 1, *[0] * 13, 1]
    for one, given in zip(found[5:], values[5:], strict=True):
        edges, least = one["edges"], min(given)
        # Every value is in the bin between whose edges it is; of the last one the end belongs to it.
        wanted = np.clip(np.searchsorted(edges, given, side="right") - 1, 0, len(one["counts"]) - 1)
        assert np.bincount(wanted, minlength=len(one["counts"])).tolist() == one["counts"]
        assert (edges[0], len(one["counts"]) <= 20) == (least, True)


def _values(chance: random.Random) -> list[list[float]]:
    return [
        [chance.choice([0.0, 0.5, 1.0]) for _ in range(50)],
        [float(chance.randint(-3, 10 ** chance.randint(0, 7))) for _ in range(200)],
        [chance.gauss(0, 10 ** chance.randint(-9, 9)) for _ in range(200)],
        [chance.choice([0.1, 0.2, 0.3, 0.7]) for _ in range(9)],
        [3.0, 3.0], [0.1],
    ]  # fmt: skip
