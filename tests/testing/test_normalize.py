"""The ready-made functions for ``normalize=``."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest

from rollout_trace.testing import normalize


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-23",
        "2026/11/23",
        "2026-11-23T16:44:27Z",
        "2026-11-23T16:44:27.123456+01:00",
        "2026-11-23 16:44",
        "2026-11-23 16:44:27 UTC",
        "November 23, 2026",
        "Nov 23 2026",
        "Monday, November 23, 2026",
        "Monday, November 23rd, 2026 at 4:44 PM",
        "23 November 2026",
        "23rd of Nov. 2026",
        "11/23/2026",
        "23.11.2026",
    ],
)
def test_dates(text: str) -> None:
    assert normalize.dates({"messages": [f"It is {text}."]}) == {"messages": ["It is <date>."]}


@pytest.mark.parametrize("text", ["16:44", "4:44 pm", "16:44:27", "16:44:27.123Z", "09:10 UTC"])
def test_times(text: str) -> None:
    assert normalize.dates(f"It is {text} now") == "It is <time> now"


@pytest.mark.parametrize("text", ["21 degrees", "version 1.2.3", "May I?", "in 2026", "a ratio of 1:2", "ids 12-34-56"])
def test_what_is_no_date(text: str) -> None:
    assert normalize.dates(text) == text


def test_uuids_keep_apart_what_is_different() -> None:
    first, second = "0B9E4D7C-3f0e-4d6e-9a3c-0d3b5a8f1c22", "7c1b2d3e-0f0e-4d6e-9a3c-0d3b5a8f1c99"
    body = {"a": f"{first} {second}", "b": [first.lower(), 1, None]}
    assert normalize.uuids(body) == {"a": "<uuid 1> <uuid 2>", "b": ["<uuid 1>", 1, None]}


def test_numbers_at_a_path() -> None:
    change = normalize.numbers_in("messages.*.content", "seed", "missing.*.field")
    body = {"messages": [{"content": "It is 21.5 degrees, -3 tomorrow", "n": 4}], "seed": 17, "top_p": 0.5}
    expected = {"messages": [{"content": "It is <number> degrees, <number> tomorrow", "n": 4}], "seed": "<number>"}
    assert change(body) == expected | {"top_p": 0.5}
    with pytest.raises(ValueError, match=r"messages\.\*\.content"):
        normalize.numbers_in()


def test_texts_and_a_chain() -> None:
    change = normalize.chain(normalize.texts(r"run-\d+", "run-N"), normalize.dates, normalize.texts("N", "M"))
    assert change([{"id": "run-17 of 2026-11-23"}]) == [{"id": "run-M of <date>"}]
    with pytest.raises(re.error):
        normalize.texts("(", "")


@pytest.mark.parametrize("body", [b"\xff", None, 1, True])
def test_what_holds_no_text_stays(body: Any) -> None:
    change = normalize.chain(normalize.dates, normalize.uuids, normalize.numbers_in("a.b"), normalize.texts("a", "b"))
    assert change(body) is body


def test_it_is_found_without_an_import_of_its_own() -> None:
    code = "import rollout_trace.testing as testing; print(testing.normalize.dates('2026-11-23'))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "<date>"
