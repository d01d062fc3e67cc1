"""Numbers as people read them, and cells of a table."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_trace.view import numbers as fmt
from rollout_trace.view.table import Column, Layout, cut, cut_list, escape, width_of


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0"), (999, "999"), (999.6, "1.0k"), (1234, "1.2k"), (999_960, "1.0M"), (123_456, "123k"),
     (45_600_000, "45.6M"), (2e9, "2.0G"), (-1500, "-1.5k")],
)  # fmt: skip
def test_short(value: Any, text: str) -> None:
    assert fmt.short(value) == text


@given(st.floats(0, 9.9e14))
def test_short_is_short(value: float) -> None:
    assert len(fmt.short(value)) <= 5


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0s"), (0.0004, "0.4ms"), (0.25, "250ms"), (0.9996, "1.00s"), (9.996, "10s"), (59.6, "1m00s"),
     (125, "2m05s"), (3599.7, "1h00m"), (11_520, "3h12m"), (187_200, "2d04h"), (-3, "-3.00s")],
)  # fmt: skip
def test_seconds(value: Any, text: str) -> None:
    assert fmt.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 bytes"), (1, "1 byte"), (999, "999 bytes"), (12_345, "12.3 kB"), (1_500_000, "1.5 MB")]
)
def test_sizes(value: int, text: str) -> None:
    assert fmt.size(value) == text


def test_bars() -> None:
    assert fmt.bars([0, 1, 4, 8]) == " ▁▄█"
    assert fmt.bars([0, 1, 4, 8], plain=True) == " .=@"
    assert (fmt.bars([0, 0]), fmt.bars([])) == ("  ", "")
    assert (fmt.bar(0.5, 4), fmt.bar(7, 4, plain=True), fmt.bar(-1, 4)) == ("██", "####", "")
    assert (fmt.trajectories(1), fmt.of(1200, "group")) == ("1 trajectory", "1,200 groups")


@given(st.text(max_size=20), st.integers(1, 12))
def test_a_cell_is_never_wider_than_its_column(text: str, width: int) -> None:
    safe = escape(text)
    assert safe.isprintable()
    assert width_of(cut(safe, width)) <= width


def test_a_list_is_cut_behind_an_item() -> None:
    codes = "drift 1, truncated 2, forks 1"
    assert [cut_list(codes, width) for width in (29, 28, 12, 9, 5)] == [
        codes, "drift 1, truncated 2 …", "drift 1 …", "drift 1 …", "drif…",
    ]  # fmt: skip


@given(st.lists(st.lists(st.text(max_size=9).map(escape), min_size=3, max_size=3), max_size=5), st.integers(12, 60))
def test_a_line_is_never_wider_than_the_terminal(lines: list[list[str]], width: int) -> None:
    columns = [
        Column(title="one", least=4, weight=9),
        Column(title="two", least=4, weight=1, is_list=True),
        Column(title="three"),
    ]
    layout = Layout(columns, lines, width)
    assert layout.shown
    for line in [layout.head(), *map(layout.line, lines)]:
        assert width_of(line) <= max(width, 72 if layout.shown == [2] else 0)
    assert layout.shown[0] == 0
