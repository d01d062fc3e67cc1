"""page/query.js, in the browser: the cases that view/query.py is tested with, and what changes a query."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.page.conftest import Show

CASES = json.loads((Path(__file__).parents[1] / "data" / "page_queries.json").read_text(encoding="utf-8"))

FOUND = """({summaries, queries}) => {
    const rows = summaries.map(RT.defaults.summary);
    return queries.map((query) => {
        const { test, problems } = RT.query.compile(query);
        return [rows.filter(test).map((row) => row.id), problems.length];
    });
}"""


@pytest.fixture
def query_page(show: Show) -> Any:
    return show([])[0]


def test_every_case_finds_the_same_as_the_server(query_page: Any) -> None:
    queries = [case["query"] for case in CASES["cases"]]
    found = query_page.evaluate(FOUND, {"summaries": CASES["summaries"], "queries": queries})
    assert dict(zip(queries, found, strict=True)) == {
        case["query"]: [case["ids"], case["problems"]] for case in CASES["cases"]
    }


def test_a_query_is_changed(query_page: Any) -> None:
    wanted = {
        "RT.query.toggle('a status:=x', 'status:=x')": "a",
        "RT.query.toggle('a  b', 'status:=x')": "a b status:=x",
        "RT.query.toggle('\"two words', 'status:=x')": '"two words" status:=x',
        "RT.query.setRange('a reward:1 -reward:5', 'reward', 0, 0.5, false)": "a -reward:5 reward:>=0 reward:<0.5",
        "RT.query.setRange('', 'steps', 3, 9, true)": "steps:>=3 steps:<=9",
        "RT.query.setRange('steps:>1', 'steps', 3, 3, true)": "steps:3",
        "RT.query.remove('a \"b c\" d', 1)": "a d",
        "RT.query.written('group', 'gsm8k/17', true)": "group:=gsm8k/17",
        "RT.query.written('group', 'two words', true)": 'group:"two words"',
        "RT.query.written('group', 'none', false)": 'group:"none"',
        "RT.query.written('group', 'a\"longer part', true)": 'group:"longer part"',
        "RT.query.written('group', '>5', true)": 'group:">5"',
        "RT.query.written('group', '', true)": 'group:none',
    }  # fmt: skip
    found = query_page.evaluate(f"[{', '.join(wanted)}]")
    assert dict(zip(wanted, found, strict=True)) == wanted


def test_every_group_is_found_by_the_term_that_is_written_for_it(query_page: Any) -> None:
    names = [
        "a",
        "a b",
        'say "hi" now',
        "none",
        "NONE",
        ">5",
        "=5",
        "x:y",
        "-x",
        "\\",
        "ß",
        "a\tb",
        "Ünï",
        '"',
        "\u202eabc",
    ]
    missed = query_page.evaluate(
        """(names) => names.filter((name) => {
            const { test, problems } = RT.query.compile(RT.query.written("group", name, true));
            return problems.length || !test(RT.defaults.summary({ id: "x", group: name }));
        })""",
        names,
    )
    assert missed == []


def test_rows_without_a_value_come_last_in_both_directions(query_page: Any) -> None:
    rows = [{"id": "a", "reward": 1}, {"id": "b"}, {"id": "c", "reward": 0}, {"id": "d", "reward": 1}]
    order = "([rows, reverse]) => RT.query.sorted(rows, 'reward', reverse).map((row) => row.id).join('')"
    assert query_page.evaluate(order, [rows, False]) == "cadb"
    assert query_page.evaluate(order, [rows, True]) == "adcb"
