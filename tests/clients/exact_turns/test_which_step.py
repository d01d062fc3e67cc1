"""Which step a call continues where that is not plain: equal answers, streams that nobody closed, changes in place."""

from __future__ import annotations

import gc
import hashlib
import json
import sys
import threading
from dataclasses import replace
from queue import SimpleQueue
from types import FrameType
from typing import Any

from openai import OpenAI

import rollout_trace as rt
from rollout_trace.testing import Fault, Reply, ScriptedServer
from rollout_trace.wire.turn_index import TurnIndex

from .agents import BY_TEXT, ENGINE, TOKENIZER, TOOLS, check_steps, exact, ids_sent, numbered, says, texts
from .test_exact_turns import USER, _closed, asked, said, user, wrapped  # noqa: F401

YES = {"role": "assistant", "content": "yes"}


def test_a_stream_that_nobody_closed() -> None:
    answers: list[Any] = [Fault(says("hello world"), hold_after=4), says("ok"), says("fine"), says("done")]
    with ScriptedServer(answers, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client = wrapped(server)
        with client.chat.completions.create(model="m", messages=[USER], stream=True) as stream:
            read = [next(stream), next(stream), next(stream)]
            text = "".join(one.choices[0].delta.content or "" for one in read)
            assert text
            messages = [USER, {"role": "assistant", "content": text}]
            asked(client, messages, user("two"))
            asked(client, messages, user("three"))
        first = trajectory.steps[0].completion
        assert first is not None
        said(client, [USER, {"role": "assistant", "content": first.content}, user("two, at last")])
        server.release()
    assert texts(trajectory.steps) == [None, "running", None, None]
    assert exact(trajectory.steps) == [False, False, True, True]
    check_steps(trajectory.steps[1:3])


def test_choices_that_say_the_same_go_out_as_text_where_their_ids_differ() -> None:
    def script(request: Any, choice: int, messages: Any) -> Reply:
        return Reply("yes", (), f"thought {choice}" if len(messages) == 1 else None)

    with ScriptedServer(script, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client = wrapped(server)
        client.chat.completions.create(model="m", messages=[USER], n=2)
        messages = [USER, YES]
        asked(client, messages, user("go"))
        asked(client, messages, user("on"))
    assert texts(trajectory.steps) == [None, None, "ambiguous", None]
    assert exact(trajectory.steps) == [False, False, False, True]


def test_choices_that_say_the_same_with_the_same_ids_are_one() -> None:
    with ScriptedServer(lambda request: says("yes"), tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client = wrapped(server)
        client.chat.completions.create(model="m", messages=[USER], n=2)
        said(client, [USER, YES, user("go")])
    assert exact(trajectory.steps) == [False, False, True]


def test_calls_that_are_answered_the_same_are_told_by_the_ids_of_their_calls() -> None:
    calls: list[Any] = []

    def script(request: Any, messages: Any) -> Reply:
        calls.append(None)
        return Reply(None, [("tool", '{"a": 1}')], f"thought {len(calls)}")

    with ScriptedServer(script, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client = wrapped(server)
        answers = [said(client, [USER], tools=TOOLS) for _ in range(2)]
        for answer in (*answers, {**answers[0], "tool_calls": [{**answers[0]["tool_calls"][0], "id": "other"}]}):
            (call,) = answer["tool_calls"]
            said(client, [USER, answer, {"role": "tool", "tool_call_id": call["id"], "content": "r"}], tools=TOOLS)
    first, second, *later = trajectory.steps
    assert [step.exact_turn and step.exact_turn.step_id for step in later] == [first.id, second.id, None]
    assert texts(later) == [None, None, "ambiguous"]


def test_two_agents_that_begin_alike_never_get_each_other_s_ids() -> None:
    thoughts = iter(["one", "two"])

    def script(request: Any, messages: Any) -> Reply:
        return Reply("yes", (), next(thoughts)) if len(messages) == 1 else says("ok")

    with ScriptedServer(script, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        one, two = wrapped(server), wrapped(server)
        for client in (one, two):
            said(client, [USER])
        for client in (one, two):
            said(client, [USER, YES, user("go")])
    assert texts(trajectory.steps) == [None, None, "ambiguous", "ambiguous"]


def test_messages_that_are_changed_in_their_place() -> None:
    with ScriptedServer(numbered, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client, messages = wrapped(server), [dict(USER)]
        for turn in range(4):
            # Past the SDK's types, which would copy them.
            answer = client.post("/chat/completions", body={"model": "m", "messages": messages}, cast_to=object)
            message = answer["choices"][0]["message"]
            messages += [{"role": "assistant", "content": message["content"]}, user(f"go {turn}")]
            if turn == 1:
                messages[0]["content"] = "changed"
    assert texts(trajectory.steps) == [None, None, "history_changed", None]
    assert trajectory.steps[2].exact_turn is not None
    assert trajectory.steps[2].exact_turn.message == 0
    check_steps(trajectory.steps)


def test_the_ids_stand_behind_the_caller_s_own_body() -> None:
    bodies: list[list[bytes]] = []
    for engine in (BY_TEXT, ENGINE):
        with ScriptedServer(numbered, tokenizer=TOKENIZER) as server, rt.trajectory():
            client, messages = wrapped(server, engine), [dict(USER)]
            for turn in range(3):
                asked(client, messages, *([user(f"gö {turn}")] if turn else []))
            bodies.append([one.body for one in server.requests if one.path.endswith("completions")])
    for by_text, by_ids in zip(*bodies, strict=True):
        assert by_ids.startswith(by_text[:-1])
        ids = json.loads(by_ids).pop("kv_transfer_params", None)
        assert by_ids == by_text or by_ids[len(by_text) - 1 :] == b"," + json.dumps(
            {"kv_transfer_params": ids}, separators=(",", ":")
        )[1:].encode()  # fmt: skip


class Signing(OpenAI):
    """A client that signs what it sends."""

    def _prepare_request(self, request: Any) -> None:
        request.headers["x-digest"] = hashlib.sha256(request.content).hexdigest()


def test_a_client_that_signs_its_requests_signs_the_ids() -> None:
    with ScriptedServer(numbered, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        with Signing(base_url=server.base_url, api_key="-") as plain:
            client, messages = rt.wrap_openai(plain, engine=ENGINE), [dict(USER)]
            for turn in range(2):
                asked(client, messages, *([user("go")] if turn else []))
        sent = [one for one in server.requests if one.path.endswith("completions")]
    assert exact(trajectory.steps) == [False, True]
    assert ids_sent(sent[1]) is not None
    assert [one.headers["x-digest"] for one in sent] == [hashlib.sha256(one.body).hexdigest() for one in sent]


def _one_of_two(number: int) -> Reply:
    """An answer that says the same as another one, in other ids."""
    return says("hello") if number == 1 else Reply(token_ids=[*TOKENIZER.encode("hello"), TOKENIZER.eos_token_id])


HELLO = {"role": "assistant", "content": "hello"}


def test_a_step_that_came_later_than_what_went_on_from_an_equal_one() -> None:
    begun: list[None] = []

    def script(request: Any, messages: Any) -> Reply:
        if len(messages) > 1:
            return says("ok")
        begun.append(None)
        return _one_of_two(len(begun))

    with ScriptedServer(script, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client = wrapped(server)
        for _ in range(2):
            said(client, [USER])
            said(client, [USER, HELLO, user("go")])
    assert texts(trajectory.steps) == [None, None, None, "ambiguous"]


def _left_at_its_end(client: Any, messages: Any) -> tuple[Any, str]:
    """A stream that was left behind its last text, and that text."""
    stream, text = client.chat.completions.create(model="m", messages=messages, stream=True), ""
    for chunk in stream:
        text += chunk.choices[0].delta.content or ""
        if chunk.choices[0].finish_reason is not None:
            return stream, text
    raise AssertionError("the stream has no end")


def test_a_turn_that_was_asked_before_its_step_had_ended_and_again_behind_it() -> None:
    with ScriptedServer(numbered, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client = wrapped(server)
        stream, text = _left_at_its_end(client, [USER])
        messages = [USER, {"role": "assistant", "content": text}, user("go")]
        said(client, messages)
        stream.close()
        said(client, messages)
        said(client, messages)
    assert texts(trajectory.steps) == [None, "running", None, None]
    assert exact(trajectory.steps) == [False, False, True, True]


def test_a_stream_that_was_left_at_its_end_beside_an_equal_answer() -> None:
    begun: list[None] = []

    def script(request: Any, messages: Any) -> Reply:
        begun.append(None)
        return says("ok") if len(messages) > 1 else _one_of_two(len(begun))

    with ScriptedServer(script, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client = wrapped(server)
        said(client, [USER])
        stream, text = _left_at_its_end(client, [USER])
        said(client, [USER, {"role": "assistant", "content": text}, user("go")])
        stream.close()
    assert texts(trajectory.steps) == [None, None, "running"]


def test_a_call_of_what_the_garbage_collector_closes_while_another_is_compared() -> None:
    ended = SimpleQueue[None]()

    def agent(client: Any) -> Any:
        held: list[Any] = []
        try:
            while True:
                yield held
        finally:
            said(client, [user("sum up")])
            ended.put(None)

    def collect(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_globals.get("__name__") == "rollout_trace.wire.turn_index":
            gc.collect(0)

    def work() -> None:
        with ScriptedServer(numbered, tokenizer=TOKENIZER) as server, rt.trajectory():
            client, messages = wrapped(server), [USER]
            # At each step of a comparison, in this thread alone: inside a lock of an HTTP library it would hang.
            sys.setprofile(collect)
            for turn in range(20):
                asked(client, messages, user(f"go {turn}"))
                one = agent(client)
                # A circle: nothing but the collector closes it.
                next(one).append(one)
                del one
            sys.setprofile(None)
            gc.collect()
            assert ended.qsize() == 20

    gc.disable()
    try:
        # It would hang; a thread can be left behind.
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
    finally:
        gc.enable()


def test_text_behind_an_answer_whose_tokens_lack_half_a_character() -> None:
    """vLLM 0.33 gives no text for a token that ends inside a character, where the answer's text has U+FFFD."""
    half = Reply(token_ids=[*b"h", 0xC3, *b"xy"], finish_reason="length")
    with ScriptedServer([half], tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        answer = said(wrapped(server), [USER])
    step = replace(trajectory.steps[0], token_texts=("h", "", "x", "y"))
    index = TurnIndex()
    index.add([step])
    found, _ = index.find("openai.chat", [USER, {**answer, "content": f"{answer['content']}</code>"}, user("go")])
    assert found.turn is not None
    assert (found.added, found.new) == ("</code>", [user("go")])
