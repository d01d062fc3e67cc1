"""White space around an answer that its agent strips: the turn is exact. Everywhere else it counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.testing import Reply, ScriptedServer

from .agents import TOKENIZER, TOOLS, check_steps, exact, ids_of, numbered, says, texts
from .test_exact_turns import USER, _closed, asked, said, user, wrapped  # noqa: F401

RESULT = {"role": "tool", "content": "result\n"}


def answer(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


@pytest.mark.parametrize(
    ("sampled", "sent"),
    [
        (" hello", "hello"),
        ("hello \n", "hello"),
        ("\n\nhello  world\t", "hello  world"),
        (" hello", [{"type": "text", "text": "hello"}]),
        ("hello", "hello\n"),
        (" \n", None),
        (" \n", ""),
    ],
)
def test_an_answer_that_is_stripped(sampled: str, sent: Any) -> None:
    with ScriptedServer(lambda request: says(sampled), tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client, messages = wrapped(server), [USER]
        for turn in range(3):
            said(client, messages)
            messages += [answer(sent), user(f"go {turn}")]
        said(client, messages)
    assert exact(trajectory.steps) == [False, True, True, True], texts(trajectory.steps)
    assert len(trajectory.sequences()) == 1
    served = TOKENIZER.decode(ids_of(trajectory.steps[-1].prompt_token_ids))
    assert served.count(f"<|im_start|>assistant\n{sampled}<|im_end|>\n") == 3


def test_text_beside_calls_that_is_stripped() -> None:
    reply = Reply("\n\n", [("tool", '{"a": 1}')])
    with ScriptedServer(lambda request: reply, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client, messages = wrapped(server), [USER]
        for _ in range(3):
            one = said(client, messages, tools=TOOLS)
            (call,) = one["tool_calls"]
            messages += [{**one, "content": None}, {**RESULT, "tool_call_id": call["id"]}]
    assert exact(trajectory.steps) == [False, True, True], texts(trajectory.steps)


def test_an_item_of_responses_that_is_stripped() -> None:
    with ScriptedServer(lambda request: says(" hello\n"), tokenizer=TOKENIZER) as server:
        with rt.trajectory() as trajectory:
            client, items = wrapped(server), [USER]
            for _ in range(3):
                said = client.responses.create(model="m", input=items).output_text
                items += [answer(said.strip()), user("go")]
    assert exact(trajectory.steps) == [False, True, True], texts(trajectory.steps)


@pytest.mark.parametrize(
    ("sent", "added"),
    [("hello wor", ""), ("hello wor</code>", "</code>"), (" hello wor</code>", "</code>"), ("hello wor \n", " \n")],
)
def test_an_answer_that_a_stop_text_cut(sent: str, added: str) -> None:
    script = [says(" hello world"), says("ok")]
    with ScriptedServer(script, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client = wrapped(server)
        said(client, [USER], stop=["wor"])
        said(client, [USER, answer(sent), user("go")])
    assert exact(trajectory.steps) == [False, True], texts(trajectory.steps)
    served = TOKENIZER.decode(ids_of(trajectory.steps[-1].prompt_token_ids))
    assert f"<|im_start|>assistant\n hello wor{added}<|im_end|>\n" in served


def white_space_inside(client: Any) -> None:
    said(client, [USER, answer("hello world  0"), user("go")])


def another_letter(client: Any) -> None:
    said(client, [USER, answer("Hello world 0"), user("go")])


def words_left_out(client: Any) -> None:
    said(client, [USER, answer("hello world"), user("go")])


def a_message_of_the_user(client: Any) -> None:
    said(client, [{**USER, "content": "hi "}, answer("hello world 0"), user("go")])


@pytest.mark.parametrize("change", [white_space_inside, another_letter, words_left_out, a_message_of_the_user])
def test_what_is_not_the_same(change: Callable[[Any], None]) -> None:
    with ScriptedServer(numbered, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client = wrapped(server)
        said(client, [USER])
        change(client)
    assert texts(trajectory.steps) == [None, "history_changed"]
    turn = trajectory.steps[1].exact_turn
    assert turn is not None
    assert turn.message == (change is not a_message_of_the_user)


def test_a_result_and_an_answer_of_others_are_compared_as_they_stand() -> None:
    script = [Reply(None, [("tool", '{"a": 1}')]), *[says("hello")] * 4]
    with ScriptedServer(script, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client, others = wrapped(server), [USER, answer("Yes.\n"), user("do it")]
        one = said(client, others, tools=TOOLS)
        called = [*others, one, {**RESULT, "tool_call_id": one["tool_calls"][0]["id"]}]
        asked(client, called, tools=TOOLS)
        for at, content in ((4, "result"), (1, "Yes.")):
            changed = [*called, user("go")]
            changed[at] = {**changed[at], "content": content}
            said(client, changed, tools=TOOLS)
        said(client, [*called, user("go")], tools=TOOLS)
    assert texts(trajectory.steps) == [None, None, "history_changed", "history_changed", None]
    assert [step.exact_turn and step.exact_turn.message for step in trajectory.steps[2:4]] == [4, 1]
    check_steps(trajectory.steps)


def test_choices_that_differ_in_white_space() -> None:
    def script(request: Any, choice: int, messages: Any) -> Reply:
        return says(["hello", " hello", "hello "][choice] if len(messages) == 1 else "ok")

    with ScriptedServer(script, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client = wrapped(server)
        client.chat.completions.create(model="m", messages=[USER], n=3)
        for sent in ("hello", " hello", "\nhello"):
            said(client, [USER, answer(sent), user("go")])
    first, second, _, *later = trajectory.steps
    # As it stands it is one of them; stripped otherwise it may be any.
    assert [step.exact_turn and step.exact_turn.step_id for step in later] == [first.id, second.id, None]
    assert texts(later) == [None, None, "ambiguous"]
