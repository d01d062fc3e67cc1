"""What frameworks make of a history: each turn is exact, or says why not; what is served reads as the messages do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from openai import InternalServerError

import rollout_trace as rt
from rollout_trace.testing import Fault, Reply, ScriptedServer
from rollout_trace.testing.tokenizer import ByteTokenizer

from .agents import TOKENIZER, TOOLS, check_steps, exact, ids_of, numbered, says, spelled, texts
from .test_exact_turns import USER, _closed, asked, said, user, wrapped  # noqa: F401

TWO_CALLS = Reply(None, [("tool", '{"a":  1}'), ("tool", '{"b":2}')])
Agent = Callable[[Any], None]


def results(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The results of its calls."""
    return [{"role": "tool", "tool_call_id": call["id"], "content": call["function"]["arguments"]}
            for call in message["tool_calls"]]  # fmt: skip


def calls_in_another_order(client: Any) -> None:
    messages: list[Any] = [USER]
    asked(client, messages, tools=TOOLS)
    messages[-1]["tool_calls"].reverse()
    asked(client, messages, *results(messages[-1]), tools=TOOLS)


def results_in_another_order(client: Any) -> None:
    messages: list[Any] = [USER]
    asked(client, messages, tools=TOOLS)
    asked(client, messages, *results(messages[-1])[::-1], tools=TOOLS)


def two_that_begin_alike(client: Any) -> None:
    """Sub-agents of one trajectory."""
    agents: list[list[Any]] = [[USER], [USER]]
    for turn in range(3):
        for at, messages in enumerate(agents):
            asked(client, messages, *([user(f"go {turn} {at}")] if turn else []))


def a_retry_of_two_choices(client: Any) -> None:
    messages: list[Any] = [USER]
    asked(client, messages)
    messages.append(user("two"))
    for _ in range(2):
        choices = client.chat.completions.create(model="m", messages=messages, n=2).choices
    for choice in choices:
        said(client, [*messages, {"role": "assistant", "content": choice.message.content}, user("go")])


def users_merged(client: Any) -> None:
    messages: list[Any] = [USER]
    asked(client, messages)
    asked(client, messages, user("two"), user("three"))
    messages[2:4] = [user("two\n\nthree")]
    asked(client, messages, user("four"))
    asked(client, messages, user("five"))


def another_role(client: Any) -> None:
    messages: list[Any] = [{"role": "system", "content": "You help."}, USER]
    asked(client, messages)
    messages[0] = {**messages[0], "role": "developer"}
    asked(client, messages, user("two"))
    asked(client, messages, user("three"))


def a_late_result(client: Any) -> None:
    """Some templates look its tool's name up by the id of its call."""
    messages: list[Any] = [USER]
    asked(client, messages, tools=TOOLS)
    early, late = results(messages[-1])
    asked(client, messages, early, tools=TOOLS)
    asked(client, messages, late, tools=TOOLS)
    asked(client, messages, user("go on"), tools=TOOLS)


def an_answer_in_parts(client: Any) -> None:
    messages: list[Any] = [USER]
    asked(client, messages)
    messages[-1]["content"] = [{"type": "text", "text": messages[-1]["content"]}]
    asked(client, messages, user("two"))
    text = messages[-1]["content"]
    messages[-1]["content"] = [{"type": "text", "text": one} for one in (text[:3], text[3:])]
    asked(client, messages, user("three"))


def empty_answers(client: Any) -> None:
    messages: list[Any] = [USER]
    contents: tuple[Any, ...] = ("", None, [])
    for content in contents:
        asked(client, messages)
        messages[-1]["content"] = content
        messages.append(user("go on"))
    asked(client, messages)


def another_choice_of_tools(client: Any) -> None:
    messages: list[Any] = [USER]
    asked(client, messages, tools=TOOLS, tool_choice="required")
    asked(client, messages, *results(messages[-1]), tools=TOOLS, tool_choice="auto")
    asked(client, messages, user("two"), tools=TOOLS, tool_choice="auto")


def a_stop_text_put_back(client: Any) -> None:
    messages: list[Any] = [USER]
    asked(client, messages, stop=["wor"])
    messages[-1]["content"] += "wor"
    asked(client, messages, user("two"), stop=["wor"])
    messages[-1]["content"] += "wor, and more"
    asked(client, messages, user("three"))


def a_stop_text_put_back_where_tokens_have_no_texts(client: Any) -> None:
    messages: list[Any] = [USER]
    asked(client, messages, stop=["wor"], logprobs=False)
    messages[-1]["content"] += "wor"
    asked(client, messages, user("two"))


def a_prompt_that_was_cut(client: Any) -> None:
    messages: list[Any] = [USER]
    asked(client, messages, extra_body={"truncate_prompt_tokens": 20})
    asked(client, messages, user("two"))


def an_answer_of_others_is_asked_about_again(client: Any) -> None:
    messages = [USER, {"role": "assistant", "content": "Yes."}, user("two")]
    said(client, messages)
    said(client, messages)
    said(client, [*messages, user("three")])


HISTORIES: dict[Agent, tuple[Any, list[str | None]]] = {
    calls_in_another_order: ([TWO_CALLS, says("ok")], ["history_changed"]),
    results_in_another_order: ([TWO_CALLS, says("ok")], ["exact"]),
    two_that_begin_alike: (lambda request: says("hello"), [None, *["exact"] * 4]),
    a_retry_of_two_choices: (lambda request, choice, messages: says(f"hello {choice}"), ["exact"] * 6),
    users_merged: (numbered, ["exact", "history_changed", "exact"]),
    a_late_result: ([TWO_CALLS, says("hello"), says("hello"), says("ok")], ["exact", "template", "exact"]),
    another_role: (numbered, ["history_changed", "exact"]),
    an_answer_in_parts: (numbered, ["exact", "history_changed"]),
    empty_answers: (lambda request: says(""), ["exact"] * 3),
    another_choice_of_tools: ([TWO_CALLS, says("hello"), says("ok")], ["settings_changed", "exact"]),
    a_stop_text_put_back: (lambda request: says("hello world"), ["exact", "exact"]),
    a_stop_text_put_back_where_tokens_have_no_texts: (lambda request: says("hello world"), ["history_changed"]),
    a_prompt_that_was_cut: (numbered, ["settings_changed"]),
    an_answer_of_others_is_asked_about_again: (numbered, [None, None]),
}
"""What the model answers, and what becomes of each step behind the first."""


@pytest.mark.parametrize("agent", HISTORIES, ids=lambda agent: agent.__name__)
def test_a_history(agent: Agent) -> None:
    script, expected = HISTORIES[agent]
    with ScriptedServer(script, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        agent(wrapped(server))
    steps = trajectory.steps
    found = ["exact" if one else why for one, why in zip(exact(steps), texts(steps), strict=True)]
    assert found == [None, *expected]
    check_steps(steps)


def test_reasoning_items_that_are_left_out_of_responses() -> None:
    script = [Reply("hello", (), "I think."), says("ok")]
    with ScriptedServer(script, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client = wrapped(server)
        items: list[Any] = [{"role": "user", "content": "hi"}]
        answer = client.responses.create(model="m", input=items)
        assert [one.type for one in answer.output] == ["reasoning", "message"]
        items += [answer.output[1].model_dump(exclude_none=True), {"role": "user", "content": "go"}]
        client.responses.create(model="m", input=items)
    assert exact(trajectory.steps) == [False, True], texts(trajectory.steps)
    check_steps(trajectory.steps)


def test_thinking_that_is_none_of_the_trajectory_s_is_left_to_the_template() -> None:
    messages: list[Any] = [USER, {"role": "assistant", "content": "Yes.", "reasoning": "I think."}, user("two")]
    engine = rt.Engine("vllm", exact_turns=True, thinking="template")
    with ScriptedServer(numbered, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client = wrapped(server, engine)
        asked(client, messages)
        asked(client, messages, user("three"))
    assert texts(trajectory.steps) == [None, "thinking"]


class EndedByRoles(ByteTokenizer):
    """Turns that have no end of their own: the token of the next role ends them, as GLM's."""

    @property
    def eos_token_id(self) -> int:
        (found,) = self.encode("<|observation|>")
        return found

    def _header(self, role: str) -> list[int]:
        return self.encode("<|observation|>\n" if role == "tool" else f"<|{role}|>\n")

    def _footer(self) -> list[int]:
        return []


def test_a_turn_that_the_role_behind_it_ends() -> None:
    tokenizer = EndedByRoles(("<|user|>", "<|assistant|>", "<|observation|>"))
    reply = Reply(None, [("tool", '{"a":  1}')], stop_reason=tokenizer.eos_token_id)
    with ScriptedServer(lambda request: reply, tokenizer=tokenizer) as server, rt.trajectory() as trajectory:
        client = wrapped(server)
        messages: list[Any] = [USER]
        for _ in range(3):
            asked(client, messages, tools=TOOLS)
            messages += results(messages[-1])
    assert exact(trajectory.steps) == [False, True, True], [step.exact_turn for step in trajectory.steps]
    served = tokenizer.decode(ids_of(trajectory.steps[2].prompt_token_ids))
    assert served == tokenizer.apply_chat_template(trajectory.steps[2].messages or (), TOOLS, tokenize=False)


def test_a_stop_text_is_served_once() -> None:
    with ScriptedServer(lambda request: says("hello world"), tokenizer=TOKENIZER) as server:
        with rt.trajectory() as trajectory:
            a_stop_text_put_back(wrapped(server))
    served = TOKENIZER.decode(ids_of(trajectory.steps[2].prompt_token_ids))
    assert served.count("hello wor<|im_end|>") == served.count("hello wor, and more<|im_end|>") == 1
    assert ids_of(trajectory.steps[0].completion_token_ids) == spelled("hello wor")


def test_a_call_that_fails_says_nothing_of_what_was_served() -> None:
    script: list[Any] = [says("hello"), Fault(status=500), says("ok")]
    with ScriptedServer(script, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client = wrapped(server)
        messages: list[Any] = [USER]
        asked(client, messages)
        messages.append(user("two"))
        with pytest.raises(InternalServerError):
            said(client, messages)
        said(client, messages)
        trajectory.reward = 1.0
    assert exact(trajectory.steps) == [False, False, True]
    assert [one.code for one in trajectory.check()] == ["error"]
