"""The search box: page/expression.js on the table that view/expression.py is tested with, and what changes a search."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import rollout_trace as rt
from rollout_trace.view.summary import summarize
from tests.page.conftest import Show
from tests.page.test_overview import ready
from tests.view.files import run, write
from tests.view.test_expression import CASES, LISTED

FOUND = """({summaries, texts}) => {
    const rows = summaries.map(RT.defaults.summary);
    return texts.map((text) => {
        const { value, problem, elsewhere } = RT.expression.compile(text);
        if (!value) return problem ? "problem" : elsewhere;
        const [ids, fails] = [[], []];
        for (const row of rows) {
            try {
                if (RT.expression.truth(value(row))) ids.push(row.id);
            } catch {
                fails.push(row.id);
            }
        }
        return [ids, fails];
    });
}"""


@pytest.fixture
def bare(show: Show) -> Any:
    return show([])[0]


def test_every_expression_gives_the_same_as_in_python(bare: Any) -> None:
    summaries = [msgspec.to_builtins(summarize(one)) for one in LISTED]
    texts = [case["expression"] for case in CASES]
    found = dict(zip(texts, bare.evaluate(FOUND, {"summaries": summaries, "texts": texts}), strict=True))
    # What is left to the server is not evaluated here at all.
    elsewhere = [text for text, one in found.items() if one is True]
    assert 10 < len(elsewhere) < 20
    wanted = {
        case["expression"]: "problem" if "error" in case else [case["ids"], case.get("fails", [])]
        for case in CASES
        if case["expression"] not in elsewhere
    }
    assert {text: one for text, one in found.items() if one is not True} == wanted


def test_a_search_is_read_and_changed(bare: Any) -> None:
    wanted = {
        "terms('left eggs')": ["left eggs"],
        "terms('salt and \"a and b\"')": ["salt", '"a and b"'],
        "terms('reward > 0 and (a == 1 and b == 2)')": ["reward > 0", "(a == 1 and b == 2)"],
        "terms('reward > 0 or index < 1 and index > 3')": ["reward > 0 or index < 1 and index > 3"],
        # The language of earlier versions.
        "terms('status:failed reward:>0.5')": ['"failed" in lower(status)', "reward > 0.5"],
        "terms('-finding:drift \"two words\" x')": ['not ("drift" in findings)', '"two words"', '"x"'],
        "terms('status:error reward:none steps:3..9')":
            ['status in ["error", "failed"]', "reward is None", "3 <= n_steps <= 9"],
        "terms('status:=Failed rewards.correct:1 started:>2026-11-20 text:\"a b\"')": [
            'lower(status) == "failed"', "rewards.correct == 1", 'started_at > "2026-11-20"', '"a b" in lower(text)',
        ],
        "terms('http://x:1')": ["http://x:1"],
        "toggle('eggs', 'reward == 1')": "eggs and reward == 1",
        "toggle('eggs and reward == 1', 'reward == 1')": "eggs",
        "toggle('reward > 0 or index < 1', 'task is None')": "(reward > 0 or index < 1) and task is None",
        "toggle('this or that', 'task is None')": '"this" and "or" and "that" and task is None',
        "toggle('reward:1', 'task is None')": "reward == 1 and task is None",
        "remove('eggs and reward == 1 and \"b c\"', 1)": 'eggs and "b c"',
        "setRange('eggs and reward == 1', 'reward', 0, 0.5, false)": "eggs and 0 <= reward < 0.5",
        "setRange('0 <= reward < 0.5 and eggs', 'reward', 0.5, 1, true)": "eggs and 0.5 <= reward <= 1",
        "setRange('n_steps > 1', 'n_steps', 3, 3, true)": "n_steps == 3",
        "setRange('', 'started_at', 'a', 'b', true)": '"a" <= started_at <= "b"',
    }  # fmt: skip
    found = bare.evaluate(f"[{', '.join(f'RT.search.{one}' for one in wanted)}]")
    assert dict(zip(wanted, found, strict=True)) == wanted


def test_rows_without_a_value_come_last_in_both_directions(bare: Any) -> None:
    rows = [{"id": "a", "reward": 1}, {"id": "b"}, {"id": "c", "reward": 0}, {"id": "d", "reward": 1}]
    order = "([rows, reverse]) => RT.data.sorted(rows, 'reward', reverse).map((row) => row.id).join('')"
    assert bare.evaluate(order, [rows, False]) == "cadb"
    assert bare.evaluate(order, [rows, True]) == "adcb"


def test_every_example_that_the_page_shows_finds_something(pages: Any, serve: Any, tmp_path: Path) -> None:
    error = rt.ErrorInfo(type="ZeroDivisionError", message="division by zero, after a timeout")
    one = run(0, "left eggs? tool_calls", reward=None, status="failed", error=error)
    two = run(1, reward=0.75, rewards={"correct": 1.0})
    two.steps = [dataclasses.replace(two.steps[0], latency=61.0, finish_reason="length")]
    three = run(2, reward=0.75, status="completed", error=error)
    page = pages.new(own=(address := serve(write(tmp_path / "x.jsonl", [one, two, three])).address))
    page.goto(address)
    ready(page)
    page.get_by_role("button", name="keys and help").click()
    names = page.locator("dialog p.soft").last.inner_text().split(", ")
    examples = page.locator("dialog dt code").all_inner_texts()
    page.keyboard.press("Escape")
    box = page.get_by_role("searchbox")
    placeholder = re.fullmatch("Search: words, or (.*)", box.get_attribute("placeholder") or "")
    assert placeholder is not None
    assert len(examples) > 9
    for text in [*examples, placeholder[1], "status:error", "status:failed", *(f"{name} or True" for name in names)]:
        box.fill(text)
        page.wait_for_function("(q) => new URLSearchParams(location.hash.split('?')[1]).get('q') === q", arg=text)
        ready(page)
        assert page.locator("tbody tr").count() > 0, text
        assert page.locator(".problems").inner_text() == "", text


def test_what_is_typed_is_not_lost_and_escape_leaves_the_box(show: Show) -> None:
    page, _ = show([])
    ready(page)
    page.keyboard.press("/")
    answers: list[Any] = []
    page.route("**/api/rows?*", lambda route: answers.append(route))
    page.keyboard.type("egg")
    with page.expect_request("**/api/rows?*"):
        pass
    # What was asked for first comes while one goes on typing.
    page.keyboard.type("s left")
    page.unroute("**/api/rows?*")
    for answer in answers:
        answer.fallback()
    page.wait_for_url("**q=eggs+left**")
    ready(page)
    assert page.get_by_role("searchbox").input_value() == "eggs left"
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement === document.body")
    assert page.get_by_role("searchbox").input_value() == "eggs left"
