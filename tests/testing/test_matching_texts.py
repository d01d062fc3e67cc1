"""The texts of unmatched requests are those that were read: ``matching_texts`` writes the files anew."""

from __future__ import annotations

import gzip
import re
from typing import Any

import pytest
from rich.cells import cell_len

from rollout_trace.data.exchange import Exchange
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
    assert {"bold", "cyan", "red", "green"} <= set(re.findall(r"<(\w+)>", text))
    # Paint is all that is added.
    assert re.sub(r"<\w+>|</>", "", text) == found.text()


@pytest.mark.parametrize("long", [LONG, "風は西から吹いている west é " * 60], ids=["narrow", "wide"])
@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_no_line_is_longer_than_the_terminal(width: int, long: str) -> None:
    calls = [exchange("openai.chat", [Turn("user", long * number)], long) for number in range(1, 5)]
    found = Matcher([calls[:2]]).take(request("openai.chat", [Turn("user", long.replace("west", "east"))], seed=long))
    assert isinstance(found, Unmatched)
    texts = [found.text(width=width), unused_text(calls, width=width), changes_text(calls[:3], calls[1:], width=width)]
    for text in texts:
        lengths = [cell_len(line) for line in text.splitlines()]
        assert max(lengths) <= width
        # Nor are they cut long before its edge.
        assert max(lengths) >= width - 16


def answered(response: bytes, *headers: tuple[str, str], status: int | None = 200, **fields: Any) -> str:
    recorded = exchange("openai.chat", TURNS[:1], stream=True)
    fields |= {"response": response, "headers": headers, "status": status, "chunk_sizes": (len(response),)}
    return unused_text([Exchange(**{**vars(recorded), **fields})]).partition("-> ")[2]


STREAM = b"".join(
    b'data: {"choices": [{"index": 0, "delta": {"content": "%s"}}]}\n\n' % word for word in (b"Sunny", b" all", b" day")
)


def test_answers_of_every_kind() -> None:
    events = ("content-type", "text/event-stream")
    assert answered(STREAM, events) == "Sunny all day"
    assert answered(STREAM[:80], events, outcome="cut") == "Sunny (cut off)"
    assert answered(gzip.compress(STREAM), events, ("content-encoding", "gzip")) == "Sunny all day"
    assert answered(b"abc", events, ("content-encoding", "none-such")).startswith("(content-enc")
    assert answered(b"<html>Bad gateway</html>", status=502).startswith("status 502")
    assert answered(b"", events, status=None, outcome="closed") == "(closed by the client)"


def test_a_whole_dump_is_never_printed() -> None:
    texts = [f"{seed} " + "".join(map(chr, range(32, 0x2FF))) * 200 for seed in range(2)]
    calls = [exchange("openai.chat", [Turn("user", text)], text) for text in texts]
    found = Matcher([calls[:1]]).take(request("openai.chat", [Turn("user", texts[1])]))
    assert isinstance(found, Unmatched)
    shown = found.text() + unused_text(calls) + changes_text(calls[:1], calls[1:])
    assert len(shown) < 3000
    assert shown.replace("\n", "").isprintable()


def test_nothing_changed() -> None:
    calls = [exchange("openai.chat", TURNS[:1]), exchange("openai.chat", TURNS)]
    assert changes_text(calls, calls[::-1]) == ""
    assert changes_text([], []) == unused_text([]) == ""
