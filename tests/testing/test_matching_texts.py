"""The texts of unmatched requests are those that were read: ``matching_texts`` writes the files anew."""

from __future__ import annotations

import re

import pytest

from rollout_trace.testing.matching import Matcher, Unmatched, changes_text, unused_text
from tests.testing.matching_cases import TURNS, Turn, exchange, request
from tests.testing.matching_texts import FILES, FOLDER, LONG, text_of


@pytest.mark.parametrize("name", FILES)
def test_the_text_is_as_it_was_read(name: str) -> None:
    assert text_of(name) == (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


def test_there_is_no_other_file() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(FILES)


def painted(text: str, style: str) -> str:
    return f"<{style}>{text}</>"


def test_what_differs_is_painted() -> None:
    found = Matcher([[exchange("openai.chat", TURNS)]]).take(request("openai.chat", [*TURNS[:2], Turn("user", "x")]))
    assert isinstance(found, Unmatched)
    text = found.text(paint=painted)
    assert set(re.findall(r"<(\w+)>", text)) == {"bold", "cyan", "red", "green"}
    assert "^" not in text
    # Paint is all that is added, besides the marks that stand for it.
    plain = re.sub(r"<\w+>|</>", "", text)
    assert plain == re.sub(r"\n +\^+$", "", found.text(), flags=re.MULTILINE)


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_no_line_is_longer_than_the_terminal(width: int) -> None:
    calls = [exchange("openai.chat", [Turn("user", LONG * number)], LONG) for number in range(1, 5)]
    found = Matcher([calls[:2]]).take(request("openai.chat", [Turn("user", LONG.replace("west", "east"))], seed=LONG))
    assert isinstance(found, Unmatched)
    texts = [found.text(width=width), unused_text(calls, width=width), changes_text(calls[:3], calls[1:], width=width)]
    for text in texts:
        assert max(map(len, text.splitlines())) <= width


def test_nothing_changed() -> None:
    calls = [exchange("openai.chat", TURNS[:1]), exchange("openai.chat", TURNS)]
    assert changes_text(calls, calls[::-1]) == ""
    assert changes_text([], []) == unused_text([]) == ""
