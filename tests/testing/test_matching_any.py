"""Whatever a body holds, there is an answer or a text that can be printed."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_trace.data.exchange import Exchange
from rollout_trace.testing import normalize
from rollout_trace.testing.matching import Matcher, MatchOptions, Request, Unmatched, changes_text, unused_text
from tests.strategies import texts
from tests.testing.matching_cases import PROTOCOLS, TURNS, exchange

SMALL = st.none() | st.booleans() | st.integers(-2, 2) | texts
VALUES = SMALL | st.lists(SMALL, max_size=2) | st.dictionaries(st.sampled_from(["name", "text", "id"]), SMALL)
ROLES = st.sampled_from(["user", "assistant", "tool", "system", "model", 1, None])
KINDS = st.sampled_from(["text", "tool_use", "tool_result", "function_call", "function_call_output", None, 2])
NAMES = ("content", "text", "id", "tool_call_id", "call_id", "tool_use_id", "name", "input", "thinking")
FIELDS = dict.fromkeys(NAMES, VALUES)
PARTS = st.fixed_dictionaries({"type": KINDS}, optional=FIELDS) | VALUES
FUNCTIONS = st.fixed_dictionaries({}, optional={"id": texts, "function": VALUES, "functionCall": VALUES})
MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        **FIELDS,
        "role": ROLES,
        "type": KINDS,
        "content": texts | st.lists(PARTS, max_size=2),
        "parts": st.lists(PARTS | FUNCTIONS, max_size=2),
        "tool_calls": st.lists(FUNCTIONS, max_size=2) | VALUES,
    },
)
TOOLS = st.fixed_dictionaries(
    {}, optional={"name": texts, "function": VALUES, "functionDeclarations": st.lists(VALUES, max_size=2)}
)
LISTS = st.lists(MESSAGES | VALUES, max_size=3) | VALUES
BODIES = st.fixed_dictionaries(
    {},
    optional={
        "model": VALUES,
        **dict.fromkeys(("messages", "input", "contents", "prompt", "system", "systemInstruction"), LISTS),
        "tools": st.lists(TOOLS | VALUES, max_size=3) | VALUES,
        "generationConfig": VALUES,
        "options": VALUES,
        "max_tokens": VALUES,
    },
)
OPTIONS = st.sampled_from(
    [
        MatchOptions(),
        MatchOptions(ignore=("messages.*.content", "tools.0", "*.role", "model")),
        MatchOptions(normalize=normalize.chain(normalize.dates, normalize.uuids, normalize.numbers_in("messages.*.*"))),
    ]
)


def with_body(protocol: str, body: Any) -> Exchange:
    return Exchange(**{**vars(exchange(protocol, TURNS)), "request": json.dumps(body).encode()})


@settings(max_examples=60)
@given(st.sampled_from(PROTOCOLS), BODIES, BODIES, OPTIONS, st.integers(60, 130))
def test_any_two_bodies(protocol: str, old: Any, new: Any, options: MatchOptions, width: int) -> None:
    recorded, asked = with_body(protocol, old), with_body(protocol, new)
    request = Request("POST", asked.path, asked.request)
    found = Matcher([[recorded]], options).take(request)
    lists = [unused_text([recorded], width=width), changes_text([recorded], [asked], width=width)]
    if isinstance(found, Unmatched):
        assert found.nearest is recorded or found.nearest is None
        lists.append(found.text(width=width))
    for text in lists:
        assert text.replace("\n", "").isprintable()
    # A command stays on its line, however long it is.
    lines = [line for text in lists for line in text.splitlines() if not line.startswith("      ")]
    assert all(len(line) <= width for line in lines)


@settings(max_examples=60)
@given(st.sampled_from(PROTOCOLS), BODIES, OPTIONS)
def test_any_body_is_its_own(protocol: str, body: Any, options: MatchOptions) -> None:
    recorded = with_body(protocol, body)
    respelled = json.dumps(body, indent=1, sort_keys=True).encode()
    assert Matcher([[recorded]], options).take(Request("POST", recorded.path, respelled)) is recorded


@given(st.sampled_from(PROTOCOLS), st.binary(max_size=40), st.binary(max_size=40))
def test_bodies_that_are_no_json(protocol: str, old: bytes, new: bytes) -> None:
    recorded = Exchange(**{**vars(exchange(protocol, TURNS)), "request": old})
    found = Matcher([[recorded]]).take(Request("POST", recorded.path, new))
    if old == new:
        assert found is recorded
    elif isinstance(found, Unmatched):
        assert found.text().replace("\n", "").isprintable()
