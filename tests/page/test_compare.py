"""Two trajectories side by side."""

from __future__ import annotations

import pytest

from tests.page.conftest import NARROW, WIDE, Pages, assert_accessible, picture
from tests.page.solver import child, solver
from tests.page.trajectories import One, long, opened


def group() -> list[One]:
    return [solver(2), solver(1, "The answer is 98, I am sure."), child(2)]


def test_a_trajectory_leads_to_its_comparison_with_another_of_its_group(pages: Pages) -> None:
    page, _ = opened(pages, group())
    page.click("a.compare")
    page.wait_for_url("**#/compare/0-0/0-1")
    page.wait_for_selector(".verdict:has-text('First difference')")
    assert page.locator(".head").first.inner_text().startswith("solver chain/1 · rollout 2\nreward 1 (+1)")
    assert page.locator(".head").nth(1).inner_text().startswith("solver chain/1 · rollout 1\nreward 0 (-1)")


def test_the_first_difference_is_found_and_marked(pages: Pages) -> None:
    page, _ = opened(pages, group(), "#/compare/0-0/0-1")
    page.wait_for_selector(
        ".verdict:has-text('First difference: step 2 (the answers differ, from token 3 of the answer on)')"
    )
    page.click(".verdict button")
    assert page.evaluate("location.hash") == "#/compare/0-0/0-1?step=2"
    pair = page.locator(".pair[data-pair='2']")
    pair.wait_for()
    assert "selected" in (pair.get_attribute("class") or "")
    assert pair.locator(".t.differs").all_text_contents() == [" 89.", " 98,"]
    assert page.locator(".pair[data-pair='1'] .pair-label").inner_text() == "step 1: the same"
    pair.locator(".t.differs").first.hover()
    assert "step 2, token 3" in page.locator(".compare-token").inner_text()


def test_steps_that_one_has_alone_are_one_line(pages: Pages) -> None:
    page, _ = opened(pages, [long(2), long(41)], "#/compare/0-0/0-1?step=40")
    page.wait_for_selector(".verdict:has-text('step 2 (one of them has ended)')")
    assert page.locator(".pair").count() == 3
    assert page.locator(".pair").last.inner_text().splitlines() == [
        "step 2: one of them has ended", "has ended", "goes on for 39 steps",
    ]  # fmt: skip
    page.get_by_role("link", name="39 steps").click()
    page.wait_for_url("**#/t/0-1?step=2")


def test_the_same_ones_are_said_to_be_the_same(pages: Pages) -> None:
    page, _ = opened(pages, [long(3), long(3)], "#/compare/0-0/0-1")
    page.wait_for_selector(".verdict:has-text('Both are the same in every step.')")


def test_two_of_a_thousand_steps_are_bounded(pages: Pages) -> None:
    page, _ = opened(pages, [long(1000), long(1000)], "#/compare/0-0/0-1?step=900")
    page.wait_for_selector(".pair[data-pair='900'].same")
    assert page.locator("*").count() < 6000


def test_a_key_that_is_missing_is_said(pages: Pages) -> None:
    page, _ = opened(pages, group(), "#/compare/0-0")
    page.wait_for_selector("[role=alert]:has-text('needs two trajectories')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("size", "name"), [(WIDE, "wide"), (NARROW, "narrow")])
def test_it_can_be_used_by_everybody(pages: Pages, scheme: str, size: tuple[int, int], name: str) -> None:
    page, _ = opened(pages, group(), "#/compare/0-0/0-1?step=2", size=size, scheme=scheme)
    page.wait_for_selector(".pair.other .t.differs")
    picture(page, f"compare-{name}-{scheme}")
    # It fills the window, and scrolls inside.
    assert page.locator(".scroll").bounding_box()["height"] > 400
    assert_accessible(page)
    names = page.eval_on_selector_all("section[aria-label]", "all => all.map((one) => one.getAttribute('aria-label'))")
    assert len(names) == len(set(names)) > 3
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
