"""What requests of one conversation repeat is found by comparing their texts: what is read is what each says alone."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_trace.data import lists
from rollout_trace.data.lists import ListSpan, ListStore
from rollout_trace.wire import request as wire_request
from rollout_trace.wire.facts import RequestFacts
from rollout_trace.wire.request import messages_of, read
from rollout_trace.wire.steps import Stores
from tests.amount import cuts, examples

WORDS = "what is said twice, and three times over " * 16
TALK: list[Any] = [
    {"role": "system", "content": WORDS},
    {"role": "user", "content": f'{WORDS} ü \\ " ] , 12'},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "content": WORDS * 3, "tool_call_id": "c1"},
    [12, {"a": []}],
    WORDS * 2,
    12,
]
"""Items of lists may be anything; the last one's text may go on."""


def asked(messages: Any, **more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": messages, **more}, separators=(",", ":")).encode()


def of(request: bytes, stores: Stores | None = None, protocol: str = "openai.chat") -> RequestFacts:
    """The facts of a request, in a trajectory or alone."""
    stores = stores or Stores()
    return read(protocol, request, stores.messages, stores.tools)


def plain(facts: RequestFacts) -> Any:
    tools = facts.tools.get() if isinstance(facts.tools, ListSpan) else facts.tools
    return facts.model, messages_of(facts), tools, facts.sampling


def same(request: bytes, stores: Stores, protocol: str = "openai.chat") -> list[Any]:
    """The messages of the next request, which are those that it has alone."""
    facts = of(request, stores, protocol)
    assert plain(facts) == plain(of(request, None, protocol))
    return messages_of(facts)


def read_anew(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The texts of lists that are split into their items from now on."""
    found: list[bytes] = []
    split = lists._split

    def kept(text: bytes) -> Any:
        found.append(text)
        return split(text)

    monkeypatch.setattr(lists, "_split", kept)
    return found


@pytest.mark.parametrize(
    "protocol", ["openai.chat", "openai.responses", "anthropic.messages", "google.generate_content"]
)
def test_only_messages_that_are_new_are_read(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = {"openai.responses": "input", "google.generate_content": "contents"}.get(protocol, "messages")
    system = {"openai.responses": "instructions", "anthropic.messages": "system"}.get(protocol, "other")
    requests = [
        json.dumps({name: TALK[:count], system: "s"}, separators=(",", ":")).encode() for count in (5, 6, 6, 4, 7)
    ]
    stores, found = Stores(), read_anew(monkeypatch)
    facts = [of(request, stores, protocol) for request in requests]
    assert [json.loads(text) for text in found] == [TALK[:5], TALK[5:6], TALK[6:]]
    assert [messages_of(one)[-3:] for one in facts] == [TALK[:count][-3:] for count in (5, 6, 6, 4, 7)]
    whole = messages_of(facts[-1])
    assert all(one is other for each in facts for one, other in zip(messages_of(each), whole, strict=False))


def test_a_request_that_differs_at_any_byte_is_read_from_there() -> None:
    stores, whole = Stores(), asked(TALK)
    same(whole, stores)
    for at in cuts(whole, 3):
        for other in (b"x", b",", b'"', b"]", b"3", b"\\"):
            same(whole[:at] + other + whole[at + 1 :], stores)
        same(whole[:at] + b"1" + whole[at:], stores)


def test_messages_that_are_known_are_not_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, decode = list[int](), wire_request._FIELDS.decode

    def counted(body: bytes) -> Any:
        sizes.append(len(body))
        return decode(body)

    monkeypatch.setattr(wire_request, "_FIELDS", SimpleNamespace(decode=counted))
    stores = Stores()
    for count in (5, 6, 7):
        of(asked(TALK[:count], temperature=1), stores)
    new = [len(asked(TALK[at : at + 1], temperature=1)) for at in (5, 6)]
    assert sizes[0] > 2 * max(new)
    assert all(size <= most + 25 for size, most in zip(sizes[1:], new, strict=True))


@pytest.mark.parametrize("known", [TALK, TALK[:4]])
def test_only_the_list_that_is_the_bodys_own_counts(known: list[Any]) -> None:
    """The same name inside of another field, and twice in one body, of which the last one counts."""
    stores, once, more = Stores(), json.dumps(TALK, separators=(",", ":")), '{"role":"user","content":"new"}'
    same(asked(known), stores)
    for body in (
        f'{{"metadata":{{"messages":{once}}},"messages":[{more}]}}',
        f'{{"metadata":{{"messages":[{more}]}},"messages":{once}}}',
        f'{{"metadata":{{"messages":{once}}}}}',
        f'{{"messages":{once},"messages":[{more}]}}',
        f'{{"messages":[{more}],"messages":{once}}}',
        f'{{"messages":{once},"mess\\u0061ges":[{more}]}}',
        f'{{"messages":{once[:-1]},{more}],"model":"m","messages":null}}',
        f'{{"messages":{once[:-1]},{more}],"model":"m"',
    ):
        same(body.encode(), stores)


def test_a_number_that_goes_on_is_another_one() -> None:
    stores = Stores()
    for last in (12, 123, 1, 12.5, [12], 12, "12"):
        assert same(asked([*TALK[:-1], last]), stores)[-1] == last


def test_lists_with_white_space_are_read_whole() -> None:
    stores = Stores()
    for spelled in ({"separators": (", ", ": ")}, {"indent": 1}, {"separators": (",", ":")}):
        for count in (3, 7, 5):
            text = json.dumps({"model": "m", "messages": TALK[:count], "tools": TALK}, **spelled)
            same(text.encode(), stores)


def test_what_lists_are_compared_with_is_bounded() -> None:
    store = ListStore()
    for number in range(9):
        store.add_text(json.dumps([number, "x" * 3000], separators=(",", ":")).encode())
    assert len(store._texts) == lists._TEXTS
    long = json.dumps(["x" * lists._TEXT_BYTES]).encode()
    store.add_text(long)
    assert [one.text for one in store._texts] == [long]
    store.finish()
    assert not store._texts


@st.composite
def conversations(draw: st.DrawFn) -> list[bytes]:
    """Requests by turns of some agents: each goes on with an earlier one's messages, whole, in part, or changed."""
    items = st.sampled_from([*TALK, 1, 123, {}, [], "", {"content": TALK[0]["content"], "role": "system"}])
    known: list[list[Any]] = [TALK, TALK[:2], TALK[::-1]]
    found = []
    for _ in range(draw(st.integers(2, 9))):
        messages = [*draw(st.sampled_from(known))]
        kind = draw(st.sampled_from(["whole", "whole", "cut", "changed"]))
        at = draw(st.integers(0, len(messages) - 1)) if messages else 0
        if kind == "cut":
            del messages[at:]
        elif kind == "changed" and messages:
            messages[at] = draw(items)
        messages += draw(st.lists(items, max_size=2))
        known.append(messages)
        separators = draw(st.sampled_from([(",", ":"), (",", ":"), (", ", ": "), (",", ": ")]))
        fields = {"messages": messages, "model": "m", "tools": draw(st.sampled_from([TALK, TALK[:3]]))}
        if draw(st.booleans()):
            fields = dict(reversed(fields.items()))
        found.append(json.dumps(fields, separators=separators).encode())
    return found


@settings(max_examples=examples(600), deadline=None)
@given(conversations(), st.sampled_from(["openai.chat", "anthropic.messages"]))
def test_all_conversations_are_read_as_each_request_is_alone(requests: list[bytes], protocol: str) -> None:
    stores = Stores()
    for request in requests:
        same(request, stores, protocol)
