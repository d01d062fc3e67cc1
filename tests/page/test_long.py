"""A trajectory of 5,000 steps: what is in the document is bounded, and every step can be reached."""

from __future__ import annotations

from typing import Any

import pytest

from tests.page.conftest import Pages, picture
from tests.page.trajectories import One, long, opened

STEPS = 5_000
MOST = 4_000


@pytest.fixture(scope="module")
def one() -> One:
    return long(STEPS)


def nodes(page: Any) -> int:
    return int(page.evaluate("document.querySelectorAll('*').length"))


def loaded(page: Any, step: int) -> None:
    page.wait_for_selector(f"section[data-step='{step}'] .answer .meta:has-text('30 sampled')")


def test_an_address_leads_to_a_step_far_down(pages: Pages, one: One) -> None:
    page, served = opened(pages, [one], "#/t/0-0?step=4321")
    loaded(page, 4321)
    box = page.locator("section[data-step='4321']").bounding_box()
    assert 80 < box["y"] < 200
    assert "answer of step 4321" in page.locator("section[data-step='4321'] .answer").inner_text()
    assert nodes(page) < MOST
    # No step is loaded that nobody looks at.
    assert {arguments["first"] for name, arguments in served.asked if name == "steps"} <= {"4250", "4300", "4350"}
    picture(page, "long")


def test_it_scrolls_to_the_end_and_back(pages: Pages, one: One) -> None:
    page, _ = opened(pages, [one])
    loaded(page, 0)
    page.locator(".scroll").focus()
    page.keyboard.press("End")
    loaded(page, STEPS - 1)
    assert nodes(page) < MOST
    scroll = "document.querySelector('.scroll')"
    bottom = f"{scroll}.scrollHeight - {scroll}.scrollTop - {scroll}.clientHeight"
    page.wait_for_function(f"{bottom} < 400")
    page.keyboard.press("Home")
    loaded(page, 0)
    assert page.locator("h1").first.is_visible()
    assert nodes(page) < MOST


def test_scrolling_by_the_wheel_passes_every_step_in_order(pages: Pages, one: One) -> None:
    page, _ = opened(pages, [one])
    loaded(page, 0)
    page.mouse.move(600, 500)
    seen: list[int] = []
    for _ in range(40):
        page.mouse.wheel(0, 700)
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        steps = page.locator("section[data-step]").evaluate_all("all => all.map(one => Number(one.dataset.step))")
        assert steps == list(range(steps[0], steps[0] + len(steps)))
        seen += steps
    assert sorted(set(seen)) == list(range(max(seen) + 1))
    assert max(seen) > 60
    assert nodes(page) < MOST


def test_what_is_read_stays_where_it_is_while_heights_above_become_known(pages: Pages, one: One) -> None:
    page, _ = opened(pages, [one], "#/t/0-0?step=2000")
    loaded(page, 2000)
    page.mouse.move(600, 500)
    for _ in range(12):
        before = page.locator("section[data-step='2000']").bounding_box()
        page.mouse.wheel(0, -20)
        page.wait_for_function(
            "(y) => Math.abs(document.querySelector(\"section[data-step='2000']\").getBoundingClientRect().y - y) > 1",
            arg=before["y"],
        )
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        after = page.locator("section[data-step='2000']").bounding_box()
        assert abs(after["y"] - before["y"] - 20) < 2


def test_j_and_k_go_on_from_a_step_far_down(pages: Pages, one: One) -> None:
    page, _ = opened(pages, [one], "#/t/0-0?step=3000")
    loaded(page, 3000)
    for _ in range(25):
        page.keyboard.press("j")
    loaded(page, 3025)
    assert page.evaluate("location.hash") == "#/t/0-0?step=3025"
    page.wait_for_function("document.querySelector(\"section[data-step='3025']\").getBoundingClientRect().y < 300")


def test_a_search_of_all_steps_finds_one_that_is_not_loaded(pages: Pages, one: One) -> None:
    page, _ = opened(pages, [one])
    loaded(page, 0)
    page.fill(".find input", "question 4444?")
    assert "not in what is loaded" in page.locator(".find").inner_text()
    page.keyboard.press("Enter")
    page.wait_for_selector(".find:has-text('1 of 1 step')", timeout=30_000)
    loaded(page, 4444)
    assert page.evaluate("location.hash") == "#/t/0-0?step=4444"


def test_rows_and_time_of_5000_steps_are_bounded(pages: Pages, one: One) -> None:
    page, _ = opened(pages, [one], "#/t/0-0?pane=rows&step=4321")
    page.wait_for_selector(".row .m1")
    assert page.locator(".row .m1").count() <= 121
    assert nodes(page) < MOST
    page.click('.segments button:has-text("Time")')
    page.wait_for_selector(".pane .bar.current")
    assert page.locator(".pane .bar").count() <= 300
    assert nodes(page) < MOST
