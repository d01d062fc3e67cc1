"""Messages: deltas merged as the unstreamed answer has it, and every field a server sends is kept."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_trace.data.model import Completion, ToolCall
from tests.amount import examples
from tests.wire.raw import read, streamed, unary

Fragment = dict[str, Any]


def completion(*deltas: Fragment) -> Completion:
    """What a stream of these deltas says."""
    found = read(streamed(*deltas)).completion
    assert found is not None
    return found


def unstreamed(message: Fragment) -> Completion:
    """What an unstreamed answer with this message says."""
    found = read(unary({"message": message})).completion
    assert found is not None
    return found


def call(index: Any = ..., call_id: Any = ..., name: Any = ..., arguments: Any = ..., kind: Any = ...) -> Fragment:
    """A delta with one fragment of a tool call; what is not given is not sent."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not ...}
    fragment = {"index": index, "id": call_id, "type": kind, "function": function or ...}
    return {"tool_calls": [{key: value for key, value in fragment.items() if value is not ...}]}


F = ToolCall(id="a", name="f", arguments='{"x": 1}')
G = ToolCall(id="b", name="g", arguments="{}")

MERGED: dict[str, list[Fragment]] = {
    "as OpenAI sends them": [
        call(0, "a", "f", "", "function"), call(0, arguments='{"x"'), call(0, arguments=": 1}"),
        call(1, "b", "g", "", "function"), call(1, arguments="{}"),
    ],
    "whole": [call(0, "a", "f", '{"x": 1}'), call(1, "b", "g", "{}")],
    "both in one delta": [
        {"tool_calls": [*call(0, "a", "f", '{"x": 1}')["tool_calls"], *call(1, "b", "g", "{}")["tool_calls"]]}
    ],
    "index null": [
        call(None, "a", "f", '{"x"'), call(None, arguments=": 1}"),
        call(None, "b", "g", "{"), call(None, arguments="}"),
    ],
    "an id that comes after an empty one, with the name again": [
        call(0, "", "f", ""), call(0, "a", "f", '{"x": 1}'), call(1, "", "g", ""), call(1, "b", "g", "{}"),
    ],
    "index missing": [
        call(..., "a", "f", '{"x"'), call(arguments=": 1}"), call(..., "b", "g"), call(arguments="{}"),
    ],
    "index missing, id repeated": [
        call(..., "a", "f", '{"x"'), call(..., "a", arguments=": 1}"),
        call(..., "b", "g"), call(..., "b", arguments="{}"),
    ],
    "index missing, interleaved by id": [
        call(..., "a", "f", '{"x"'), call(..., "b", "g", "{"), call(..., "a", arguments=": 1}"),
        call(..., "b", arguments="}"),
    ],
    "every index zero": [
        call(0, "a", "f", '{"x"'), call(0, arguments=": 1}"), call(0, "b", "g", ""), call(0, arguments="{}"),
    ],
    "every index zero, id empty afterwards": [
        call(0, "a", "f", ""), call(0, "", None, '{"x": 1}'), call(0, "b", "g", ""), call(0, "", None, "{}"),
    ],
    "every index zero, id repeated": [
        call(0, "a", "f", ""), call(0, "a", None, '{"x": 1}'), call(0, "b", "g", ""), call(0, "b", None, "{}"),
    ],
    "interleaved": [
        call(0, "a", "f", '{"x"'), call(1, "b", "g", "{"), call(0, arguments=": 1}"), call(1, arguments="}"),
    ],
    "indexes with a gap": [call(3, "a", "f", '{"x": 1}'), call(7, "b", "g", "{"), call(7, arguments="}")],
    "id and name repeated with arguments": [
        call(0, "a", "f", '{"x"', "function"), call(0, "a", "f", ": 1}", "function"),
        call(1, "b", "g", "{", "function"), call(1, "b", "g", "}", "function"),
    ],
    "nulls everywhere": [
        call(0, "a", "f", None, "function"), call(0, None, None, '{"x": 1}', None), call(0, None, None, None, None),
        call(1, "b", "g", None), call(1, None, None, "{}"), {"tool_calls": None, "content": None}, {"tool_calls": []},
    ],
    "id after the name": [
        call(0, ..., "f", ""), call(0, "a", ..., '{"x": 1}'), call(1, ..., "g", "{}"), call(1, "b"),
    ],
    "name in pieces": [
        {"tool_calls": [{"index": 0, "id": "a", "function": {"name": ""}}]},
        call(0, ..., "f"), call(0, arguments='{"x": 1}'), call(1, "b", "g", "{}"),
    ],
}  # fmt: skip


def both(first: Fragment, second: Fragment) -> Fragment:
    """Two fragments in one delta."""
    return {"tool_calls": [*first["tool_calls"], *second["tool_calls"]]}


ONE, TWO = '{"x": 1}', "{}"
SHARED: dict[str, list[Fragment]] = {
    "index 0, id empty": [call(0, "", "f", ONE), call(0, "", "g", TWO)],
    "index 0, id null": [call(0, None, "f", ONE), call(0, None, "g", TWO)],
    "index 0, an id on the first alone": [call(0, "a", "f", ONE), call(0, name="g", arguments=TWO)],
    "index 0, no ids, in one delta": [both(call(0, name="f", arguments=ONE), call(0, name="g", arguments=TWO))],
    "one id for both": [call(..., "a", "f", ONE), call(..., "a", "g", TWO)],
    "one id for both, in pieces": [
        call(..., "a", "f", '{"x"'), call(..., "a", arguments=": 1}"),
        call(..., "a", "g"), call(..., "a", arguments="{"), call(..., "a", arguments="}"),
    ],
    "index 0, in pieces": [
        call(0, name="f", arguments='{"x"'), call(0, arguments=": 1}"),
        call(0, name="g"), call(0, arguments="{"), call(0, arguments="}"),
    ],
    "index 0, the name with each piece": [
        call(0, name="f", arguments='{"x"'), call(0, name="f", arguments=": 1}"),
        call(0, name="g", arguments="{"), call(0, name="g", arguments="}"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("way", SHARED)
def test_another_name_is_another_call_whatever_index_and_id_they_share(way: str) -> None:
    assert [(one.name, one.arguments) for one in completion(*SHARED[way]).tool_calls] == [("f", ONE), ("g", TWO)]


@pytest.mark.parametrize("call_id", ["call_f", "", None, ...])
@pytest.mark.parametrize("index", [0, None, ...])
def test_a_whole_object_after_a_whole_one_is_another_call(index: Any, call_id: Any) -> None:
    again = [call(index, call_id, "f", ONE), call(index, call_id, "f", TWO)]
    assert [(one.name, one.arguments) for one in completion(*again).tool_calls] == [("f", ONE), ("f", TWO)]
    objects = [call(index, call_id, "f", {"x": 1}), call(index, call_id, "f", {})]
    assert [(one.name, one.arguments) for one in completion(*objects).tool_calls] == [("f", '{"x":1}'), ("f", "{}")]


@pytest.mark.parametrize("arguments", [["{", "}"], ['{"x": "{}', '{}"}'], ["", "{}"], ["{}", ""], ["[1", "]"]])
def test_a_name_that_comes_again_with_a_piece_is_the_same_call(arguments: list[str]) -> None:
    pieces = [call(0, "a", "f", one) for one in arguments]
    assert [(one.name, one.arguments) for one in completion(*pieces).tool_calls] == [("f", "".join(arguments))]


@pytest.mark.parametrize("way", MERGED)
def test_tool_calls_are_put_together_however_they_are_numbered(way: str) -> None:
    """Index present, null, missing, all zero or with gaps; ids once, repeated or late: the same two calls."""
    assert completion({"role": "assistant", "content": ""}, *MERGED[way]).tool_calls == (F, G)


SPLIT: dict[str, list[Fragment]] = {
    "index out of order": [call(1, "b", "g", "{}"), call(0, "a", "f", '{"x"'), call(0, arguments=": 1}")],
    "name repeated before the arguments begin": [
        call(0, "a", "f", ""),
        call(0, "a", "f", '{"x": 1}'),
        call(1, "b", "g", ""),
        call(1, "b", "g", "{}"),
    ],
    "arguments before id and name": [
        call(0, arguments='{"x"'), call(0, "a", "f", ": 1}"), call(1, "b", "g", "{}"),
    ],
    "the index of the call before on the first fragment alone": [
        call(0, "a", "f", ""), call(0, arguments='{"x": 1}'), call(0, "b", "g", ""), call(1, arguments="{}"),
    ],
    "two in each delta, without an index": [
        both(call(..., "a", "f", ""), call(..., "b", "g", "")),
        both(call(..., arguments='{"x"'), call(..., arguments="{")),
        both(call(..., arguments=": 1}"), call(..., arguments="}")),
    ],
    "two in each delta, without an index, in another order": [
        both(call(..., "a", "f", ""), call(..., "b", "g", "")),
        both(call(..., "b", arguments="{}"), call(..., "a", arguments='{"x": 1}')),
    ],
    "another id on later fragments": [
        *(call(0, "a", "f", ""), call(0, "a2", arguments='{"x"'), call(0, "a3", arguments=": 1}")),
        *(call(1, "b", "g", ""), call(1, "b2", arguments="{}")),
    ],
}  # fmt: skip


@pytest.mark.parametrize("way", SPLIT)
def test_tool_calls_are_put_together_against_the_odds(way: str) -> None:
    """Order is the index's; a name that comes again whole is one name; a known index without a name goes on."""
    assert completion(*SPLIT[way]).tool_calls == (F, G)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"id": "a"}, {"id": "a"}),
        ({"index": 0}, {"index": 0}),
        ({"index": 0, "id": ""}, {"index": 0, "id": ""}),
    ],
)
def test_unstreamed_tool_calls_are_never_joined(first: Fragment, second: Fragment) -> None:
    """Each item of an unstreamed list is a whole call, whatever its id and index."""
    calls = [
        {**first, "function": {"name": "f", "arguments": '{"x": 1}'}},
        {**second, "function": {"name": "f", "arguments": "{}"}},
    ]
    assert [c.arguments for c in unstreamed({"tool_calls": calls}).tool_calls] == ['{"x": 1}', "{}"]


def test_an_unstreamed_tool_call_is_kept_as_written() -> None:
    """Arguments are the raw string, be it JSON or not; unknown fields go to the call's extra."""
    (one, two, three, four) = unstreamed(
        {
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{ "x":1 , '}, "index": 0},
                {"id": "b", "type": "custom", "custom": {"name": "shell", "input": "ls -l"}},
                {"id": "c", "function": {"name": "g", "arguments": {"a": [1, 2.5]}}},
                {"id": "d", "function": {"name": "h", "arguments": "", "strict": True}, "extra_content": {"s": "t"}},
            ]
        }
    ).tool_calls
    assert one == ToolCall(id="a", name="f", arguments='{ "x":1 , ')
    assert two == ToolCall(id="b", name="shell", arguments="ls -l", type="custom")
    assert three == ToolCall(id="c", name="g", arguments='{"a":[1,2.5]}')
    assert four == ToolCall(id="d", name="h", arguments="", extra={"strict": True, "extra_content": {"s": "t"}})


@pytest.mark.parametrize("calls", ["x", 5, {"a": 1}, ["x"], [5, {"function": {"name": "f"}}], [None]])
def test_tool_calls_of_another_shape_do_not_vanish_with_the_text(calls: Any) -> None:
    """What is no list of calls cannot be read as calls; the rest of the message is not lost with it."""
    assert unstreamed({"content": "hi", "tool_calls": calls}).content == "hi"


TEXTS: dict[str, tuple[Fragment, Completion]] = {
    "null text": ({"content": None}, Completion()),
    "empty text": ({"content": ""}, Completion(content="")),
    "nothing": ({}, Completion()),
    "role": ({"role": "tool", "content": "x"}, Completion(role="tool", content="x")),
    "reasoning": ({"content": "4", "reasoning": "2+2"}, Completion(content="4", reasoning="2+2")),
    "reasoning_content": ({"content": "4", "reasoning_content": "2+2"}, Completion(content="4", reasoning="2+2")),
    "both alike": (
        {"reasoning": "r", "reasoning_content": "r", "content": "4"},
        Completion(content="4", reasoning="r"),
    ),
    "both, different": (
        {"reasoning": "r", "reasoning_content": "s", "content": "4"},
        Completion(content="4", reasoning="r", extra={"reasoning_content": "s"}),
    ),
    "reasoning alone": ({"content": "", "reasoning": "hm"}, Completion(reasoning="hm")),
    "refusal": ({"content": None, "refusal": "no"}, Completion(refusal="no")),
    "refusal beside an empty text": ({"content": "", "refusal": "no"}, Completion(refusal="no")),
    "empty text beside calls": (
        {"content": "", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": '{"x": 1}'}}]},
        Completion(tool_calls=(F,)),
    ),
    "text beside calls": (
        {"content": "so", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": '{"x": 1}'}}]},
        Completion(content="so", tool_calls=(F,)),
    ),
    "nulls": (
        {"content": "x", "refusal": None, "annotations": None, "audio": None, "function_call": None, "reasoning": None},
        Completion(content="x"),
    ),
    "legacy function call": (
        {"content": None, "function_call": {"name": "f", "arguments": "{}"}},
        Completion(extra={"function_call": {"name": "f", "arguments": "{}"}}),
    ),
    "unknown fields": (
        {"content": "x", "annotations": [{"type": "url"}], "score": 0.5, "flag": False, "note": "n", "o": {"a": [1]}},
        Completion(
            content="x",
            extra={"annotations": [{"type": "url"}], "score": 0.5, "flag": False, "note": "n", "o": {"a": [1]}},
        ),
    ),
    "audio": (
        {"content": None, "audio": {"id": "au_1", "data": "AAAA", "transcript": "hi", "expires_at": 5}},
        Completion(extra={"audio": {"id": "au_1", "data": "AAAA", "transcript": "hi", "expires_at": 5}}),
    ),
    "content parts": (
        {"content": [{"type": "text", "text": "a"}, {"type": "image", "url": "u"}]},
        Completion(content=[{"type": "text", "text": "a"}, {"type": "image", "url": "u"}]),
    ),
    "reasoning of another type": (
        {"content": "x", "reasoning": {"summary": "s"}},
        Completion(content="x", extra={"reasoning": {"summary": "s"}}),
    ),
}


@pytest.mark.parametrize("case", TEXTS)
def test_a_message_is_the_same_streamed_in_one_delta_and_unstreamed(case: str) -> None:
    """Text, reasoning, refusal, parts and unknown fields each have their place; nulls have none."""
    message, expected = TEXTS[case]
    assert unstreamed(message) == expected
    assert completion(message) == expected


DELTAS: dict[str, tuple[list[Fragment], Completion]] = {
    "legacy function call": (
        [{"function_call": {"name": "f", "arguments": ""}}, *({"function_call": {"arguments": c}} for c in '{"x": 1}')],
        Completion(extra={"function_call": {"name": "f", "arguments": '{"x": 1}'}}),
    ),
    "audio": (
        [
            {"audio": {"id": "au_1", "transcript": "he"}},
            *({"audio": {"transcript": "y"}}, {"audio": {"data": "AA"}}, {"audio": {"data": "BB"}}),
            {"audio": {"expires_at": 5}},
        ],
        Completion(extra={"audio": {"id": "au_1", "transcript": "hey", "data": "AABB", "expires_at": 5}}),
    ),
    "lists": ([{"annotations": [1]}, {"annotations": [2, 3]}], Completion(extra={"annotations": [1, 2, 3]})),
    "numbers and flags": ([{"n": 1, "b": True}, {"n": 2, "b": False}], Completion(extra={"n": 2, "b": False})),
    "role repeated": (
        [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}], Completion(content="ab"),
    ),
    "reasoning then text": (
        [{"reasoning": "h"}, {"reasoning": "m"}, {"content": "4"}], Completion(content="4", reasoning="hm"),
    ),
    "refusal": ([{"content": ""}, {"refusal": "I "}, {"refusal": "can't"}], Completion(refusal="I can't")),
    "parts": (
        [{"content": [{"type": "text", "text": "a"}]}, {"content": [{"type": "text", "text": "b"}]}],
        Completion(content=[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DELTAS)
def test_deltas_add_up(case: str) -> None:
    """Strings are joined, lists extended, objects merged, other values replaced, wherever they stand."""
    deltas, expected = DELTAS[case]
    assert completion(*deltas) == expected


def test_parts_and_text_in_one_stream_are_both_kept() -> None:
    """A stream may send its thinking as parts and its answer as plain text: neither is lost."""
    found = completion({"content": [{"type": "thinking", "thinking": "carry the one"}]}, {"content": "four"})
    assert "carry the one" in str(found)
    assert "four" in str(found)


def _thought(text: str) -> Fragment:
    return {"type": "thinking", "thinking": [{"type": "text", "text": text}]}


def _summary(text: str) -> Fragment:
    return {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}


PARTS: dict[str, tuple[list[Fragment], Fragment, str | None]] = {
    "Mistral": (
        [
            {"content": ""}, {"content": [_thought("Let me")]}, {"content": [_thought(" think")]},
            {"content": [{"type": "text", "text": "It"}]}, {"content": " is 4"}, {"content": ""},
        ],
        {"content": [_thought("Let me think"), {"type": "text", "text": "It is 4"}]},
        None,
    ),
    "Mistral, signed": (
        [
            {"content": [_thought("Let me")]}, {"content": [{**_thought(" think"), "signature": "S"}]},
            {"content": [_thought("again")]}, {"content": "It is 4"},
        ],
        {
            "content": [
                {**_thought("Let me think"), "signature": "S"}, _thought("again"), {"type": "text", "text": "It is 4"},
            ]
        },
        "content",
    ),
    "Cohere": (
        [{"content": [{"type": "thinking", "thinking": "Let me"}]},
         {"content": [{"type": "thinking", "thinking": " think"}]}, {"content": "It is 4"}],
        {"content": [{"type": "thinking", "thinking": "Let me think"}, {"type": "text", "text": "It is 4"}]},
        None,
    ),
    "Databricks": (
        [{"content": [_summary("Let me")]}, {"content": [_summary(" think")]},
         {"content": [{"type": "text", "text": "It"}]}, {"content": [{"type": "text", "text": " is 4"}]}],
        {"content": [_summary("Let me think"), {"type": "text", "text": "It is 4"}]},
        "content",
    ),
    "OpenRouter": (
        [
            {"reasoning": "Let me", "reasoning_details": [{"type": "reasoning.text", "text": "Let me", "index": 0}]},
            {"reasoning": " think", "reasoning_details": [
                {"type": "reasoning.text", "text": " think", "index": 0, "format": "f"}]},
            {"reasoning_details": [
                {"type": "reasoning.text", "text": "", "signature": "S", "index": 0, "format": "f"},
                {"type": "reasoning.encrypted", "data": "A", "index": 1}]},
            {"reasoning_details": [{"type": "reasoning.encrypted", "data": "B", "text": None, "index": 1}]},
            {"content": "It is 4"},
        ],
        {
            "content": "It is 4", "reasoning": "Let me think",
            "reasoning_details": [
                {"type": "reasoning.text", "text": "Let me think", "index": 0, "format": "f", "signature": "S"},
                {"type": "reasoning.encrypted", "data": "A", "index": 1},
                {"type": "reasoning.encrypted", "data": "B", "text": None, "index": 1},
            ],
        },
        "reasoning_details",
    ),
    "OpenRouter, interleaved": (
        [{"reasoning_details": [{"type": "reasoning.summary", "summary": text, "index": at}]}
         for at, text in ((0, "Let me"), (1, "Or"), (0, " think"), (1, " not"))],
        {"reasoning_details": [
            {"type": "reasoning.summary", "summary": "Let me think", "index": 0},
            {"type": "reasoning.summary", "summary": "Or not", "index": 1}]},
        "reasoning_details",
    ),
    "LiteLLM": (
        [{"thinking_blocks": [{"type": "thinking", "thinking": text, **more}]}
         for text, more in (("Let me", {}), (" think", {}), ("", {"signature": "S"}), ("again", {}))],
        {"thinking_blocks": [
            {"type": "thinking", "thinking": "Let me think", "signature": "S"},
            {"type": "thinking", "thinking": "again"}]},
        "thinking_blocks",
    ),
}  # fmt: skip


@pytest.mark.parametrize("provider", PARTS)
def test_fragments_of_thoughts_are_those_of_the_whole_answer(provider: str) -> None:
    deltas, message, kept = PARTS[provider]
    found = completion(*deltas)
    assert found == unstreamed(message)
    assert list(found.extra or {}) == ([] if kept is None else [kept])
    if kept is not None:
        assert found.extra is not None
        assert found.extra[kept] == message[kept]
    if "content" in message:
        assert found.content == "It is 4"
        assert found.reasoning == ("Let me thinkagain" if "signed" in provider else "Let me think")


def test_a_repeated_name_of_a_legacy_function_call_is_one_name() -> None:
    """As with tool calls: a name that comes again is a repetition."""
    found = completion(
        {"function_call": {"name": "f", "arguments": "{"}}, {"function_call": {"name": "f", "arguments": "}"}}
    )
    assert found.extra == {"function_call": {"name": "f", "arguments": "{}"}}


WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


@st.composite
def told(draw: st.DrawFn) -> tuple[Fragment, list[Fragment]]:
    """A message, and deltas that spell it."""
    message: Fragment = {"role": "assistant"}
    deltas: list[Fragment] = [{"role": "assistant", "content": ""}]
    for name in draw(st.permutations(["content", "reasoning", "refusal", "x_note"])):
        pieces = draw(st.lists(WORDS, max_size=3))
        if pieces:
            message[name] = "".join(pieces)
            deltas += [{name: piece} for piece in pieces]
    style = draw(st.sampled_from(["index", "null", "missing", "zero"]))
    message["tool_calls"] = []
    for number in range(draw(st.integers(0, 3))):
        pieces = draw(st.lists(WORDS, max_size=3))
        function = {"name": f"f{number}", "arguments": "".join(pieces)}
        message["tool_calls"].append({"id": f"call_{number}", "type": "function", "function": function})
        index = {"index": number, "null": None, "missing": ..., "zero": 0}[style]
        deltas.append(call(index, f"call_{number}", f"f{number}", "", "function"))
        deltas += [call(index, arguments=piece) for piece in pieces]
    message.setdefault("content", "")
    return message, deltas


@settings(max_examples=examples(600))
@given(told())
def test_streamed_equals_unstreamed(case: tuple[Fragment, list[Fragment]]) -> None:
    """Any message cut into any deltas is the message."""
    message, deltas = case
    assert completion(*deltas) == unstreamed(message)
