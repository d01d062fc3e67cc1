"""The overview, with made-up trajectories: clicked, typed into, read."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from rollout_trace.view.model import Summary
from tests.page.conftest import NARROW, WIDE, Show, assert_accessible_in_both_themes
from tests.page.pretend import as_row, made_up

RUN = made_up(1204)


def ready(page: Any) -> Any:
    """Waits until the overview shows what its address says."""
    page.locator(".view-overview:not([aria-busy]) .body > *").first.wait_for()
    return page


def names(page: Any) -> list[str]:
    return [str(text) for text in page.locator("tbody tr a.open").all_inner_texts()]


def column(page: Any, name: str) -> list[str]:
    return [str(text) for text in page.locator(f'td[data-column="{name}"]').all_inner_texts()]


def figures(page: Any) -> str:
    return str(page.locator("p.figures b").first.inner_text())


def search(page: Any, text: str) -> None:
    page.get_by_role("searchbox").fill(text)


@pytest.mark.parametrize("place", ["", "#/?view=groups", "#/?q=reward+>+0.2+and+foo+>+1&sort=-tokens", "#/?q=zzz"])
def test_it_is_accessible_and_fits(show: Show, place: str) -> None:
    name = re.sub(r"\W+", "-", place).strip("-") or "list"
    for size in (WIDE, NARROW):
        # Few lines, because each is checked.
        page, _ = show(made_up(16), place, size=size)
        ready(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        assert page.evaluate("document.getElementById('main').scrollWidth") <= size[0]
        assert_accessible_in_both_themes(page, f"overview-{name}-{size[0]}")


def test_a_line_says_what_a_trajectory_came_to(show: Show) -> None:
    one = Summary(
        id="ab", name="solver", task="chain/1", index=2, status="error", error="it broke", reward=0.25, steps=3, rows=2,
        tokens=12_345, trained=2_000, findings={"drift": 2, "truncated": 1}, grade="warning", seconds=61.2, cost=0.0123,
    )  # fmt: skip
    page, _ = show([one, Summary(id="cd")])
    ready(page)
    first = page.locator("tbody tr").first
    ids = first.locator("td").evaluate_all("all => all.map(td => td.dataset.column)")
    cells = dict(zip(ids, first.locator("td").all_inner_texts(), strict=True))
    assert {name: " ".join(text.split()) for name, text in cells.items()} == {
        "name": "solver#2", "task": "chain/1", "reward": "0.25", "steps": "3", "tokens": "12.3k",
        "findings": "drift ×2, truncated", "seconds": "1 m 01 s", "cost": "$0.012", "excerpt": "it broke",
    }  # fmt: skip
    assert first.get_by_role("img", name="error").count() == 1
    assert first.get_by_role("img", name="2 training rows: 2,000 of 12,345 tokens sampled").count() == 1
    # Not recorded is no number.
    assert column(page, "reward")[1] == column(page, "cost")[1] == column(page, "tokens")[1] == "-"
    assert column(page, "steps")[1] == "0"


def test_the_bar_of_the_largest_reward_is_whole(show: Show) -> None:
    page, _ = show([Summary(id=f"t{i}", name="solver", reward=float(i % 2), steps=1 + i % 3) for i in range(6)])
    ready(page)
    bars = page.locator("tbody .meter i").evaluate_all("all => all.map(one => one.style.width)")
    assert set(bars) == {"0%", "100%"}
    titles = page.locator("g.bar title").all_text_contents()
    assert titles[:2] == ["0: 3", "1: 3"]
    assert "3: 2" in titles
    assert page.locator(".chart .ends").first.inner_text().split() == ["0", "1"]
    page.get_by_role("button", name="Reward 1: 3").press("Enter")
    page.get_by_text("3 of 6 trajectories").wait_for()
    assert page.get_by_role("searchbox").input_value() == "reward == 1"


def test_a_search_in_whole_trajectories_is_shown_as_it_goes_on(show: Show) -> None:
    page, server = show(RUN)
    ready(page)
    server.search = {"keys": ["0-3"], "share": 0.4, "problem": None}
    search(page, '"eggs" in text')
    page.locator(".problems").get_by_text("40% so far").wait_for()
    assert figures(page) == "1 of 1,204 trajectories"
    server.search = {"keys": ["0-3", "0-1200"], "share": 1, "problem": "reward cannot be compared."}
    server.generation += 1
    page.get_by_text("2 of 1,204 trajectories").wait_for()
    assert page.locator(".problems").inner_text() == "reward cannot be compared."
    assert ("search", {"where": '"eggs" in text'}) in server.asked


def test_typing_filters_and_the_address_keeps_it(show: Show) -> None:
    page, _ = show(RUN)
    ready(page)
    search(page, 'status == "error"')
    page.get_by_text("64 of 1,204 trajectories").wait_for()
    assert "q=status+%3D%3D+%22error%22" in page.url
    address = page.url
    page.get_by_role("button", name='remove the filter status == "error"').click()
    page.locator("p.figures").get_by_text("1,204 trajectories", exact=True).wait_for()
    page.goto("about:blank")
    page.goto(address)
    page.get_by_text("64 of 1,204 trajectories").wait_for()
    assert page.get_by_role("searchbox").input_value() == 'status == "error"'


def test_a_term_that_is_not_understood_is_said(show: Show) -> None:
    page, _ = show(RUN)
    ready(page)
    search(page, 'colour == "red" and status == "error"')
    page.get_by_text('colour == "red": There is no name colour').wait_for()
    assert figures(page) == "64 of 1,204 trajectories"


def test_nothing_found_leads_back(show: Show) -> None:
    page, _ = show(RUN, "#/?q=zzz")
    page.get_by_role("heading", name="No trajectory matches").wait_for()
    page.get_by_role("button", name="Clear the filter").click()
    page.locator("tbody tr").first.wait_for()


def test_counts_are_filters(show: Show) -> None:
    page, _ = show(RUN)
    ready(page)
    page.get_by_role("group", name="statuses").get_by_role("button", name="truncated").click()
    page.get_by_text("52 of 1,204 trajectories").wait_for()
    page.get_by_role("group", name="findings").get_by_role("button", name="drift").click()
    page.get_by_role("button", name='remove the filter "drift" in findings').wait_for()
    assert page.get_by_role("searchbox").input_value() == 'status == "truncated" and "drift" in findings'
    truncated = page.get_by_role("group", name="statuses").get_by_role("button", name="truncated")
    assert truncated.get_attribute("aria-pressed") == "true"
    page.go_back()
    page.get_by_text("52 of 1,204 trajectories").wait_for()


def test_columns_sort(show: Show) -> None:
    page, _ = show(RUN)
    ready(page)
    steps = page.get_by_role("columnheader", name="Steps")
    steps.get_by_role("button").click()
    page.locator('th[aria-sort="descending"]').wait_for()
    assert column(page, "steps")[0] == "24"
    steps.get_by_role("button").click()
    page.locator('th[aria-sort="ascending"]').wait_for()
    assert column(page, "steps")[0] == "1"
    assert "sort=steps" in page.url
    steps.get_by_role("button").click()
    page.locator("thead:not(:has([aria-sort$=cending]))").wait_for()
    assert "sort" not in page.url


def test_columns_are_chosen_and_remembered(show: Show) -> None:
    page, _ = show(RUN)
    ready(page)
    page.get_by_role("button", name="Columns").click()
    page.get_by_label("Model").check()
    page.get_by_label("Task").uncheck()
    page.keyboard.press("Escape")
    page.reload()
    ready(page)
    assert page.get_by_role("columnheader", name="Model").count() == 1
    assert page.get_by_role("columnheader", name="Task").count() == 0
    assert column(page, "models")[0] == "Qwen/Qwen3-8B"


def test_pages_of_a_large_list(show: Show) -> None:
    few = [as_row(i, one) for i, one in enumerate(made_up(100))]
    page, server = show([])
    ready(page)

    def answer(route: Any) -> None:
        """A quarter of the list, as the server gives it in parts."""
        first = int(dict(parse_qsl(urlsplit(route.request.url).query))["after"])
        rows = [{**few[i % 100], "key": f"0-{first + i}", "index": first + i} for i in range(500)]
        after = first + 500 if first < 1_500 else None
        route.fulfill(json={"generation": 2, "epoch": 2, "after": after, "rows": rows})

    page.route("**/api/rows?*", answer)
    server.generation = 2
    page.get_by_text("1 to 100 of 2,000").wait_for()
    page.get_by_role("button", name="last page").click()
    page.get_by_text("1,901 to 2,000 of 2,000").wait_for()
    page.locator("tbody tr").last.get_by_text("#1999").wait_for()
    assert page.locator("tbody tr").count() == 100
    page.get_by_role("button", name="previous page").click()
    page.get_by_text("1,801 to 1,900 of 2,000").wait_for()
    assert "page=19" in page.url


def test_keys(show: Show) -> None:
    page, _ = show(RUN)
    ready(page)
    key = "document.activeElement.closest('tr')?.dataset.key"
    page.keyboard.press("j")
    assert page.evaluate(key) == "0-0"
    for _ in range(3):
        page.keyboard.press("j")
    page.keyboard.press("k")
    assert page.evaluate(key) == "0-2"
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.type") == "search"
    page.keyboard.type("jg?/")  # Letters, no commands.
    assert page.get_by_role("searchbox").input_value() == "jg?/"
    page.keyboard.press("Escape")
    page.get_by_role("heading", name="No trajectory matches").wait_for()
    page.keyboard.press("x")
    page.locator("p.figures").get_by_text("1,204 trajectories", exact=True).wait_for()
    page.keyboard.press("/")
    page.keyboard.press("Enter")
    assert page.evaluate(key) == "0-0"
    page.keyboard.press("g")
    page.get_by_role("region", name="groups").wait_for()
    page.keyboard.press("g")
    page.locator("tbody tr").first.wait_for()
    page.keyboard.press("c")
    assert page.get_by_role("region", name="charts").count() == 0


def test_j_goes_on_to_the_next_page(show: Show) -> None:
    page, _ = show(RUN)
    ready(page)
    page.locator("tbody tr a.open").nth(99).focus()
    page.keyboard.press("j")
    page.get_by_text("101 to 200 of 1,204").wait_for()
    page.locator('tr[data-key="0-100"] a:focus').wait_for()
    page.keyboard.press("k")
    page.locator('tr[data-key="0-99"] a:focus').wait_for()


def test_enter_and_clicks_open_a_trajectory(show: Show) -> None:
    page, _ = show(RUN)
    ready(page)
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/#/t/0-0")
    page.go_back()
    ready(page)
    page.locator("tbody tr").nth(4).locator("td").last.click()
    page.wait_for_url("**/#/t/0-4")
    page.locator(".view-t").wait_for()


def test_a_bar_is_a_filter(show: Show) -> None:
    page, _ = show(RUN)
    ready(page)
    page.get_by_role("button", name="Reward 0 to 0.05").click()
    page.get_by_role("button", name="remove the filter 0 <= reward < 0.05").wait_for()
    assert page.get_by_role("searchbox").input_value() == "0 <= reward < 0.05"
    page.keyboard.press("x")
    page.locator("p.figures").get_by_text("1,204 trajectories", exact=True).wait_for()
    page.get_by_role("button", name=re.compile("^Reward 0 to 0.05")).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="remove the filter 0.05 <= reward < 0.1").wait_for()


def test_bars_are_brushed(show: Show) -> None:
    page, _ = show(RUN)
    ready(page)
    box = page.get_by_role("group", name="Reward, 20 bars").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.52, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.98, box["y"] + 20)
    assert page.locator(".bar.on").count() == 10
    page.mouse.up()
    page.get_by_role("button", name="remove the filter 0.5 <= reward <= 1").wait_for()
    assert page.get_by_role("searchbox").input_value() == "0.5 <= reward <= 1"


def test_a_stretch_of_time_is_brushed(show: Show) -> None:
    page, _ = show(RUN)
    ready(page)
    box = page.get_by_role("group", name=re.compile("^Reward over time")).bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 20)
    page.mouse.up()
    page.get_by_role("button", name=re.compile('remove the filter "2026-11-2.* <= started_at')).wait_for()
    shown = int(figures(page).split()[0].replace(",", ""))
    assert 250 < shown < 350


def test_groups(show: Show) -> None:
    rows = [
        Summary(id="a", group="easy", reward=1.0), Summary(id="b", group="easy", reward=1.0),
        Summary(id="c", group="hard", reward=0.0), Summary(id="d", group="hard", reward=1.0),
        Summary(id="e", group="hard"), Summary(id="f"),
    ]  # fmt: skip
    page, _ = show(rows, "#/?view=groups")
    ready(page)
    groups = page.locator("li.group")
    assert [" ".join(text.split()) for text in groups.all_inner_texts()] == [
        "easy 2 1 all equal", "hard 3 0.5 deviation 0.707 1 without reward compare best and worst",
    ]  # fmt: skip
    page.get_by_label("only groups whose rewards differ").check()
    page.locator("li.group:only-child").wait_for()
    assert "differing=1" in page.url
    assert page.get_by_role("link", name="compare best and worst").get_attribute("href") == "#/compare/0-3/0-2"
    page.get_by_role("button", name="hard").click()
    page.get_by_text("3 of 6 trajectories").wait_for()
    assert page.get_by_role("searchbox").input_value() == 'group == "hard"'
    page.go_back()
    page.get_by_role("link", name="trajectory 2, no reward").click()
    page.wait_for_url("**/#/t/0-4")
    page.locator(".view-t").wait_for()


def test_groups_are_ordered(show: Show) -> None:
    page, _ = show(made_up(40), "#/?view=groups")
    ready(page)
    page.get_by_label("Order").select_option("mean reward")
    page.wait_for_url("**order=mean**")
    ready(page)
    means = [float(text) for text in page.locator(".group .figures b").all_inner_texts()]
    assert means == sorted(means)
    assert len(set(means)) > 1


def test_what_is_recorded_meanwhile_appears(show: Show) -> None:
    rows = made_up(3)
    page, server = show(rows)
    ready(page)
    page.keyboard.press("j")
    page.keyboard.press("j")
    server.summaries = [*rows, Summary(id="new", name="newcomer", reward=0.5)]
    server.generation += 1
    page.get_by_role("link", name="newcomer").wait_for()
    assert figures(page) == "4 trajectories"
    assert page.evaluate("document.activeElement.closest('tr').dataset.key") == "0-1"


def test_the_focus_survives_a_refresh(show: Show) -> None:
    page, server = show(made_up(40))
    ready(page)
    chip = page.get_by_role("group", name="statuses").get_by_role("button", name="completed")
    chip.focus()
    server.summaries = made_up(41)
    server.generation += 1
    page.get_by_text("41 trajectories").wait_for()
    assert page.evaluate("document.activeElement.title") == 'Filter by status == "completed"'
    bar = page.locator("g.bar").first
    bar.focus()
    server.generation += 1
    with page.expect_response("**/api/rows?*"):
        pass
    ready(page)
    assert page.evaluate("document.activeElement.getAttribute('class')") == "bar"


def test_groups_are_many_pages_long(show: Show) -> None:
    page, _ = show(RUN, "#/?view=groups")
    ready(page)
    assert page.locator("li.group").count() == 50
    page.locator("li.group .open").nth(49).focus()
    page.keyboard.press("j")
    page.get_by_text("page 2 of 4").wait_for()
    page.locator('li.group[data-key="browse/51"]').wait_for()
    page.locator('li.group[data-key="chain/50"] .open:focus').wait_for()
    page.keyboard.press("k")
    page.get_by_text("page 1 of 4").wait_for()
    page.locator('li.group[data-key="swe/django/49"] .open:focus').wait_for()


def test_lines_that_cannot_be_read_are_said(show: Show) -> None:
    page, server = show(made_up(3))
    ready(page)
    server.problems = ["rollouts.jsonl: line 4 is \u202eno JSON"]
    server.generation += 1
    page.get_by_role("button", name="1 problem").click()
    page.get_by_role("dialog").get_by_text("line 4 is \\u202eno JSON").wait_for()


def test_what_is_typed_survives_a_refresh(show: Show) -> None:
    page, server = show(made_up(3))
    ready(page)
    search(page, "solver ")
    page.wait_for_url("**q=solver**")
    server.generation += 1
    with page.expect_response("**/api/rows?*"):
        pass
    ready(page)
    assert page.get_by_role("searchbox").input_value() == "solver "


def test_no_trajectory_yet(show: Show) -> None:
    page, server = show([])
    page.get_by_role("heading", name="No trajectory yet").wait_for()
    page.get_by_text("There is none in rollouts.jsonl.").wait_for()
    server.summaries = made_up(2)
    server.generation += 1
    page.locator("tbody tr").nth(1).wait_for()


def test_files_that_are_still_read(show: Show) -> None:
    page, server = show([])
    ready(page)
    server.indexing = {"done": 25, "of": 100}
    page.get_by_role("heading", name="Reading the files").wait_for()
    page.get_by_text("reading 25%").wait_for()
    server.summaries, server.indexing = made_up(2), None
    server.generation += 1
    page.locator("tbody tr").nth(1).wait_for()
    page.get_by_text("reading").wait_for(state="detached")


HOSTILE = [
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "\x1b[2J\x07", "\u202eevil\u202c", "</script><b>",
    "a\u0000b", "\ufeff\u200b", "{{constructor}}", "'\"><svg onload=alert(1)>", "x" * 5000, "\u0338" * 200,
]  # fmt: skip


@pytest.mark.parametrize("place", ["", "#/?view=groups"])
@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_hostile_text_is_text(show: Show, size: tuple[int, int], place: str) -> None:
    rows = [
        Summary(id=text, name=text, task=text, group=text, status=text, error=text, excerpt=text, note=text, reward=0.5,
                findings={text: 1}, drift={text: 1}, models=[text], currency=text, cost=1.0, parent=text)
        for text in HOSTILE
    ]  # fmt: skip
    page, _ = show(rows, place, size=size)
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    ready(page)
    text = page.locator("#main").inner_text()
    assert "<script>alert(1)</script>" in text
    assert "\\x1b[2J\\x07" in text
    assert "\\u202eevil" in text
    assert page.locator("#main script, #main img, #main b b").count() == 0
    assert page.evaluate("document.getElementById('main').scrollWidth") <= size[0]
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u200b\u202a-\u202e\u2066-\u2069\ufeff]", page.content())
    assert dialogs == []
