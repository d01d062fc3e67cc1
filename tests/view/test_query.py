"""The query of the search box: one table of cases for Python, the index's SQL and the page's JavaScript."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_trace.view.model import Summary
from rollout_trace.view.query import predicate, read_query
from tests.strategies import texts

CASES = json.loads((Path(__file__).parent.parent / "data/page_queries.json").read_text())
SUMMARIES = msgspec.convert(CASES["summaries"], list[Summary])


@pytest.mark.parametrize("case", CASES["cases"], ids=lambda case: case["query"] or "empty")
def test_query(case: dict[str, Any]) -> None:
    query = read_query(case["query"])
    matches = predicate(query)
    assert [one.id for one in SUMMARIES if matches(one)] == case["ids"]
    assert len(query.problems) == case["problems"]


def test_a_problem_names_the_field_and_what_there_is() -> None:
    assert "There is no field colour" in read_query("colour:red").problems[0]
    assert "reward" in read_query("colour:red").problems[0]
    assert read_query("reward:high").problems == [
        "reward is compared with a number, such as 0.5, >0.5 or 1..5; high is none."
    ]


def test_text_in_lines_needs_files() -> None:
    assert read_query('text:"a b"').terms[0].text == "a b"
    assert "without a server" in read_query("text:x", has_lines=False).problems[0]


@given(texts | st.text(st.sampled_from('ab:"-.>=< \t'), max_size=20))
def test_no_query_fails(text: str) -> None:
    query = read_query(text)
    predicate(query)(SUMMARIES[0])
