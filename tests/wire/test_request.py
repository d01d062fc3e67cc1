"""What a request asked for: messages and tools as sent, everything else under sampling, nothing of how it travels."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_trace.data.model import Step
from rollout_trace.wire import decode
from rollout_trace.wire.steps import Stores, exchange_of
from tests.amount import examples
from tests.wire.raw import JSON, exchanges, read, tokens, unary
from tests.wire.raw import steps_of as recorded

ANSWER = unary(tokens([1], None))


def asked(request: Any) -> Step:
    """The step of a call that sent this, as JSON or as the bytes it is."""
    return read(ANSWER, request=request if isinstance(request, bytes | None) else json.dumps(request).encode())


def test_a_request_is_taken_apart_without_loss() -> None:
    """Model, messages and tools have their places; all other fields are sampling: null, unknown and nested ones too."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "user", "content": None, "x": 1.5},
    ]
    rest = {
        "temperature": 0, "top_p": 0.9, "seed": None, "n": 2, "stop": ["a"], "tool_choice": {"type": "function"},
        "parallel_tool_calls": False, "logit_bias": {"2041": 100}, "return_token_ids": True, "no_such_field": [1, {}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "x"}}, "metadata": {"stream": True},
    }  # fmt: skip
    step = asked(
        {"model": "m", "messages": messages, "tools": tools, "stream": True, "stream_options": {"a": 1}, **rest}
    )
    assert (step.model, step.messages, step.tools, step.sampling) == ("m", messages, tools, rest)


@pytest.mark.parametrize("name", [name for name in exchanges() if not name.startswith(("err_bad", "err_malformed"))])
def test_a_recorded_request_is_taken_apart_without_loss(name: str) -> None:
    """Put together again, the facts of each recorded request are the request."""
    sent = json.loads(exchanges()[name].request)
    for step in recorded(exchanges()[name]):
        again = {"model": step.model, "messages": step.messages, "tools": step.tools, **(step.sampling or {})}
        travels = {key: sent[key] for key in ("stream", "stream_options") if key in sent}
        assert {key: value for key, value in {**again, **travels}.items() if value is not None} == sent


@pytest.mark.parametrize(
    "request_body", [None, b"", b"{", b"null", b"[]", b'"text"', b"5", b"\xff\xfe", b"model=m&n=1"]
)
def test_a_request_that_cannot_be_read_has_no_facts(request_body: bytes | None) -> None:
    """Missing, cut, of another type, no JSON: the answer is still decoded."""
    step = asked(request_body)
    assert (step.model, step.messages, step.tools) == (None, None, None)
    assert not step.sampling
    assert step.completion_token_ids is not None
    assert step.status == "ok"


def test_an_empty_request_object_has_an_empty_sampling() -> None:
    """An object without fields was read; it asked for nothing."""
    assert asked({}).sampling == {}
    assert asked(None).sampling is None


@pytest.mark.parametrize("value", [None, 5, "x", {"a": 1}, True])
@pytest.mark.parametrize("name", ["messages", "tools"])
def test_messages_and_tools_of_another_type_stay_in_sampling(name: str, value: Any) -> None:
    """What is no list of messages is kept where it does not pretend to be one."""
    step = asked({"model": "m", name: value})
    assert getattr(step, name) is None
    assert step.sampling == {name: value}


def test_messages_may_hold_anything() -> None:
    """Items are kept as sent, whatever they are; an empty list stays an empty list."""
    items: list[Any] = [None, 5, "x", [], {"role": "user", "content": "🙂 café"}, {}]
    assert asked({"messages": items}).messages == items
    assert asked({"messages": [], "tools": []}).messages == []
    assert asked({"messages": [], "tools": []}).tools == []


@pytest.mark.parametrize(("model", "expected"), [("m", "m"), (None, None), (5, "5"), ("", "")])
def test_the_model_is_a_text(model: Any, expected: str | None) -> None:
    """As sent; a number becomes its text."""
    assert asked({"model": model}).model == expected


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], "temperature": NaN}',
        b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], "top_p": -Infinity}',
        b'\n {"model":"m",\t"messages":[ {"role":"user","content":"hi"} ] , "seed":1}\r\n',
    ],
)
def test_json_as_python_writes_it_is_read(body: bytes) -> None:
    """NaN and Infinity are no JSON, but clients send them; white space is none of a value."""
    step = asked(body)
    assert (step.model, step.messages) == ("m", [{"role": "user", "content": "hi"}])
    assert step.sampling is not None
    assert len(step.sampling) == 1


def test_half_a_character_in_a_message_is_kept() -> None:
    """A lone surrogate, as `json.dumps` of a cut text sends it."""
    step = asked(b'{"messages": [{"role": "user", "content": "\\ud83d"}]}')
    assert step.messages == [{"role": "user", "content": "\ud83d"}]


@settings(max_examples=examples(450))
@given(
    st.dictionaries(
        st.sampled_from(["model", "messages", "tools", "stream", "stream_options", "n", "user", "\u00e9", ""]),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers(-(2**63), 2**64 - 1)
            | st.floats(allow_nan=False)
            | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
            max_leaves=6,
        ),
    )
)
def test_no_request_makes_the_decoder_fail(request_body: dict[str, Any]) -> None:
    """Any object is read; sampling holds every field that has no other place."""
    step = asked(request_body)
    names = {name for name in request_body if name not in ("stream", "stream_options", "model")}
    lists = {name for name in ("messages", "tools") if isinstance(request_body.get(name), list)}
    assert step.sampling == {name: request_body[name] for name in names - lists}


def test_equal_messages_of_one_call_are_one_object() -> None:
    """Within one decode, equal bytes of a message are decoded once."""
    message = {"role": "user", "content": "again"}
    step = asked({"messages": [message, {"role": "assistant", "content": "x"}, message]})
    assert step.messages is not None
    assert step.messages[0] is step.messages[2]
    assert step.messages[0] is not step.messages[1]


def test_choices_of_one_call_share_their_messages_and_tools() -> None:
    """n = 2: both steps were asked the same, and hold the same objects."""
    request = json.dumps({"messages": [{"role": "user"}], "tools": [{"type": "function"}]}).encode()
    one, other = decode("openai.chat", request, unary(tokens([1], None), tokens([2], None)), content_type=JSON)
    assert one.messages is not None
    assert other.messages is not None
    assert one.tools is not None
    assert other.tools is not None
    assert one.messages[0] is other.messages[0]
    assert one.tools[0] is other.tools[0]


def test_turns_that_repeat_their_messages_share_them() -> None:
    """Calls decoded with one store hold one object for each distinct message, and prompts of their own length."""
    stores = Stores()
    turns = []
    for turn in (1, 2, 3):
        exchange = exchanges()[f"multiturn_canonical_{turn}"]
        turns += exchange_of(
            f"call{turn}", "openai.chat", exchange.request, exchange.response,
            content_type=exchange.content_type, status=exchange.status or 0, stores=stores,
        )[0]  # fmt: skip
    assert [len(step.messages or ()) for step in turns] == [2, 4, 6]
    last = turns[-1].messages or ()
    for step in turns:
        assert all(one is other for one, other in zip(step.messages or (), last, strict=False))
        assert step.messages == json.loads(exchanges()[f"multiturn_canonical_{step.call_id[-1]}"].request)["messages"]


def test_a_list_that_was_handed_out_is_the_readers_own() -> None:
    """Sharing is of messages, not of lists: a copy that a user extends is not the step's, which cannot be extended."""
    step = asked({"messages": [{"role": "user"}]})
    assert isinstance(step.messages, list)
    step.messages.copy().append("more")
    with pytest.raises(TypeError, match="cannot be changed"):
        step.messages.append("more")
    assert step.messages == [{"role": "user"}]
