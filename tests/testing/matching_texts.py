"""The texts of unmatched requests, in files that are read by people: ``texts/*.txt``.

    python -m tests.testing.matching_texts

writes them anew.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from rollout_trace.data.exchange import Exchange
from rollout_trace.testing.matching import Matcher, MatchOptions, Request, Unmatched, changes_text, unused_text
from tests.testing.matching_cases import PROTOCOLS, TURNS, Turn, edited, exchange, request, same_request

FOLDER = Path(__file__).parent / "texts"
TEST = "tests/test_agent.py::test_weather[paris]"
CHAT = "openai.chat"
Case = tuple[str, str]
LONG = "The wind comes from the west. " * 60


def unmatched(recorded: list[list[Exchange]], *requests: Request, width: int = 80, **options: Any) -> str:
    """The text about the last of some requests."""
    matcher = Matcher(recorded, MatchOptions(**options))
    found = [matcher.take(one) for one in requests][-1]
    assert isinstance(found, Unmatched)
    return found.text(width=width, test=TEST)


def of_protocol(protocol: str) -> Iterator[Case]:
    """What changes most often, in one protocol."""
    first = exchange(protocol, TURNS[:1], at=0)
    second = exchange(protocol, TURNS, at=1)
    recorded = [[first, second]]
    ok = same_request(first)
    other = [*TURNS[:2], Turn("result", "19 degrees, rain, wind from the west", TURNS[2].id)]
    yield "another tool result", unmatched(recorded, ok, request(protocol, other))
    yield "another question", unmatched(recorded, request(protocol, [Turn("user", "What is the weather in Rome?")]))
    yield "one more message", unmatched(recorded, ok, request(protocol, [*TURNS, Turn("user", "Be brief.")]))
    yield "another model", unmatched(recorded, ok, _other_model(second))
    yield "another seed", unmatched(recorded, request(protocol, TURNS[:1], seed=7))
    if protocol != "openai.completions":
        yield "other tools", unmatched(recorded, edited(first, _other_tools), width=120)
        system = edited(first, lambda body: _replace(body, "about the weather", "about the weather, briefly"))
        yield "another system prompt", unmatched(recorded, system, width=120)
    yield "not asked for", unused_text([first, second], width=80)


def _other_model(recorded: Exchange) -> Request:
    found = edited(recorded, lambda body: body.update(model="large") if "model" in body else None)
    return Request(found.method, found.path.replace("2.5-flash", "3-pro"), found.body)


def _other_tools(body: Any) -> None:
    _replace(body, "Name of the city", "Name of the city, in English")
    tools = body["tools"][0].get("functionDeclarations", body["tools"])
    more = json.loads(json.dumps(tools[0]).replace('"weather"', '"forecast"').replace("up.", "up for tomorrow."))
    tools.append(more)


def _replace(body: dict[str, Any], old: str, new: str) -> None:
    changed = json.loads(json.dumps(body).replace(old, new))
    body.clear()
    body.update(changed)


def one_message(old: str, new: str, width: int = 80, **settings: Any) -> str:
    """The text where one message of a chat request differs."""
    return unmatched(
        [[exchange(CHAT, [Turn("user", old)])]], request(CHAT, [Turn("user", new)], **settings), width=width
    )


def of_messages() -> Iterator[Case]:
    """How texts are cut, and what is not printed as it is."""
    yield "in the middle of a long text", one_message(LONG + "Sunny." + LONG, LONG + "Rainy." + LONG)
    yield "the same, in a wide terminal", one_message(LONG + "Sunny." + LONG, LONG + "Rainy." + LONG, 120)
    yield "all of a long text", one_message(LONG, LONG.upper())
    yield "the end of a long text", one_message(LONG, LONG + LONG)
    yield "lines", one_message("first\nsecond\nthird\n" * 9, "first\nsecond\nthird\n" * 4 + "fourth\n")
    yield "spaces alone", one_message("one two", "one  two")
    yield "a line end", one_message("one two", "one two\n")
    yield "what a terminal would act on", one_message("red", "\x1b[31mred\x1b[0m \u202etxt.exe\a\r")
    yield "wide letters", one_message("東京の天気は晴れです。" * 9, "東京の天気は雨です。" * 9)
    yield "a half of a character", one_message("cut", "cut \ud83d")
    yield "an image", unmatched([[_with_image(1)]], same_request(_with_image(2)))
    yield "a text that became parts", unmatched([[exchange(CHAT, TURNS[:1])]], edited(_with_image(1), _first_part))
    yield "a date", one_message("Today is Monday, November 23, 2026.", "Today is Tuesday, January 5, 2027.")
    yield "an id", one_message(f"Session {_uuid(1)}", f"Session {_uuid(2)}")
    tokens = [exchange("openai.completions", (), prompt=list(range(500)))]
    changed = request("openai.completions", (), prompt=[*range(250), 7, *range(251, 500)])
    yield "token ids", unmatched([tokens], changed)
    yield "a name", unmatched([[exchange(CHAT, TURNS[:1])]], edited(exchange(CHAT, TURNS[:1]), _with_name))


def _with_image(seed: int) -> Exchange:
    data = b64encode(Random(seed).randbytes(12_000)).decode()
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
    ]
    recorded = exchange(CHAT, TURNS[:1])
    body = json.loads(recorded.request)
    body["messages"][1]["content"] = parts
    return Exchange(**{**vars(recorded), "request": json.dumps(body).encode()})


def _first_part(body: Any) -> None:
    body["messages"][1]["content"] = [{"type": "text", "text": TURNS[0].text}]


def _with_name(body: Any) -> None:
    body["messages"][1]["name"] = "ann"


def _uuid(seed: int) -> str:
    digits = Random(seed).randbytes(16).hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def of_calls() -> Iterator[Case]:
    """Which calls were made, and in which order."""
    texts = ("What is the weather in Paris?", "And in Rome?", "Which is warmer?")
    calls = [exchange(CHAT, [Turn("user", text)], at=at) for at, text in enumerate(texts)]
    asked = [same_request(call) for call in calls]
    yield "too early", unmatched([calls], asked[2])
    yield "too early, in one of several trajectories", unmatched([calls[:1], calls[1:]], asked[2])
    roles = [[Turn("system", f"You {one}."), Turn("user", texts[0])] for one in ("plan", "search")]
    planned = [exchange(CHAT, turns, at=at) for at, turns in enumerate(roles)]
    yield "too early, and alike but for the system message", unmatched([planned], same_request(planned[1]))
    yield "once more", unmatched([calls], *asked, asked[1])
    yield "all are used", unmatched([calls], *asked, request(CHAT, [Turn("user", "And in Oslo?")]))
    yield "nothing is recorded", unmatched([], asked[0])
    yield "a request that generates nothing", unmatched([calls], Request("GET", "/v1/models?limit=5", b""))
    embedded = [Exchange("e", "POST", "/v1/embeddings", _embedding(text), 200, (), b"{}", (2,)) for text in texts]
    yield "other embeddings", unmatched([embedded], Request("POST", "/v1/embeddings", _embedding("And in Oslo?")))
    yield "another protocol", unmatched([calls], request("anthropic.messages", TURNS))
    said = [Turn("user", text) for text in texts]
    recorded = [[exchange(CHAT, said)]]
    yield "a moved message", unmatched(recorded, request(CHAT, [said[0], said[2], said[1]]))
    search, fetch, find = ({"type": "function", "function": {"name": name}} for name in ("search", "fetch", "find"))
    tooled = [[exchange(CHAT, TURNS[:1], tools=[search, fetch])]]
    yield "a new tool", unmatched(tooled, request(CHAT, TURNS[:1], tools=[search, fetch, find]))
    yield "a tool less", unmatched(tooled, request(CHAT, TURNS[:1], tools=[search]))
    yield "tools in another order", unmatched(tooled, request(CHAT, TURNS[:1], tools=[fetch, search]))
    yield "a message less", unmatched(recorded, request(CHAT, [said[0], said[2]]))
    yield "one in the place of another", unmatched(recorded, request(CHAT, [*said[:2], Turn("assistant", "Rome.")]))
    yield "much", unmatched(recorded, request(CHAT, TURNS[1:], a=1, b=1, c=1, d=1, e=1, f=1, g=1), width=120)
    yield "several samples", unmatched([[calls[0]] * 3], *[asked[0]] * 4)
    warm = request(CHAT, TURNS[:1], seed=3, temperature=1)
    yield "free order, ignored fields", unmatched([calls], warm, order="free", ignore=("seed",))


def _embedding(text: str) -> bytes:
    return json.dumps({"model": "text-embedding-3-small", "input": text}).encode()


def of_lists() -> Iterator[Case]:
    """Lists of calls: those that were not asked for, and what recording again changed."""
    calls = [exchange(CHAT, [Turn("user", f"Question {number}. {LONG}")], f"Answer {number}") for number in range(30)]
    failed = exchange(CHAT, TURNS[:1], "The engine is overloaded.", status=503)
    gone = exchange(CHAT, TURNS[:1], outcome="unreachable")
    tool = exchange(CHAT, TURNS[:2], "\x1b[2J" + LONG)
    yield "not asked for", unused_text([calls[0], failed, gone, tool], width=80)
    yield "many were not asked for", unused_text(calls, width=120)
    old = [calls[0], exchange(CHAT, TURNS, "It is sunny."), calls[1], failed]
    new_turns = [TURNS[0], TURNS[1]._replace(id="call_new"), Turn("result", "19 degrees, rain", "call_new")]
    new = [calls[0], exchange(CHAT, new_turns, "It is raining."), exchange(CHAT, TURNS[:1], "Sunny."), calls[2]]
    yield "recorded again", changes_text(old, new, width=80)
    yield "recorded again, with other answers", changes_text(calls[:3], [*_answered(calls[:2]), calls[2]], width=120)


def _answered(calls: list[Exchange]) -> list[Exchange]:
    return [Exchange(**{**vars(call), "response": call.response.replace(b"Answer", b"Another")}) for call in calls]


FILES: dict[str, Callable[[], Iterator[Case]]] = {
    **{protocol: partial(of_protocol, protocol) for protocol in PROTOCOLS},
    "messages": of_messages,
    "calls": of_calls,
    "lists": of_lists,
}


def text_of(name: str) -> str:
    """What a file holds."""
    return "\n\n".join(f"=== {title} ===\n\n{text}" for title, text in FILES[name]()) + "\n"


if __name__ == "__main__":
    for name in FILES:
        (FOLDER / f"{name}.txt").write_text(text_of(name), encoding="utf-8")
