"""A call that continues an earlier one is sent as the ids that were sampled and served before it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

import rollout_trace as rt
from rollout_trace import export
from rollout_trace.clients.loopback.messages import json_response
from rollout_trace.testing import Reply, ScriptedServer
from tests.clients.either import Kind, drive

from .agents import (
    BY_TEXT,
    ENGINE,
    TOKENIZER,
    TOOLS,
    IgnoringServer,
    RefusingServer,
    check_steps,
    exact,
    ids_of,
    ids_sent,
    numbered,
    says,
    spelled,
    talked,
    texts,
)

USER: dict[str, Any] = {"role": "user", "content": "hi"}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


_opened: list[OpenAI] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while _opened:
        _opened.pop().close()


def wrapped(server: ScriptedServer, engine: rt.Engine = ENGINE) -> Any:
    _opened.append(OpenAI(base_url=server.base_url, api_key="-", max_retries=0))
    return rt.wrap_openai(_opened[-1], engine=engine)


def said(client: Any, messages: Sequence[Mapping[str, Any]], **options: Any) -> dict[str, Any]:
    answer = client.chat.completions.create(model="m", messages=list(messages), **options).choices[0].message
    return {"role": "assistant", **answer.model_dump(include={"content", "tool_calls"}, exclude_none=True)}


def asked(client: Any, messages: list[Any], *new: Mapping[str, Any], **options: Any) -> None:
    """Asks with the messages and the new ones, and adds these and the answer to the list."""
    messages += new
    messages.append(said(client, messages, **options))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_turns_are_one_row(kind: Kind, stream: bool) -> None:
    with ScriptedServer(numbered, tokenizer=TOKENIZER) as server:
        by_text, by_ids = (drive(kind, talked(kind, server, one, 8, stream=stream)) for one in (BY_TEXT, ENGINE))
    assert len(by_text.sequences()) == 8
    (row,) = by_ids.sequences()
    assert row.loss_mask.sum() == sum(len(ids_of(step.completion_token_ids)) for step in by_ids.steps)
    assert exact(by_ids.steps) == [False, *[True] * 7]
    assert by_ids.steps[0].exact_turn is None
    assert [step.messages for step in by_ids.steps] == [step.messages for step in by_text.steps]
    assert [step.completion for step in by_ids.steps] == [step.completion for step in by_text.steps]
    check_steps(by_ids.steps)
    # The shape of a history's end is asked for once, then what is new.
    assert [step.exact_turn.n_requests for step in by_ids.steps[1:] if step.exact_turn] == [4, *[1] * 6]


def test_tool_calls_are_served_as_they_were_sampled() -> None:
    # The grammar of the engine writes other JSON than a template: with a blank more.
    def script(request: Any, messages: Any) -> Reply:
        turn = sum(one["role"] == "assistant" for one in messages)
        return Reply("thinking aloud" if turn % 2 else None, [("tool", json.dumps({"a": turn}, indent=1))])

    with ScriptedServer(script, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client, messages = wrapped(server), [dict(USER)]
        for _ in range(5):
            asked(client, messages, tools=TOOLS)
            for call in messages[-1]["tool_calls"]:
                arguments = json.loads(call["function"]["arguments"])
                call["function"]["arguments"] = json.dumps(arguments)
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": f"result {arguments}"})
    assert exact(trajectory.steps) == [False, *[True] * 4], texts(trajectory.steps)
    assert len(trajectory.sequences()) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_turns_of_responses(stream: bool) -> None:
    def script(request: Any, messages: Any) -> Reply:
        turn = sum(one["role"] == "assistant" for one in messages)
        return Reply("hello" if turn % 2 else None, [("tool", json.dumps({"a": turn}, indent=1))])

    tool = {"type": "function", **TOOLS[0]["function"]}
    with ScriptedServer(script, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client, items = wrapped(server), [{"role": "user", "content": "hi"}]
        for _ in range(5):
            answer: Any = client.responses.create(
                model="m", input=items, tools=[tool], instructions="Help.", stream=stream
            )
            if stream:
                (answer,) = [event.response for event in answer if event.type == "response.completed"]
            items += [one.model_dump(exclude_none=True) for one in answer.output]
            items += [{"type": "function_call_output", "call_id": one.call_id, "output": "result"}
                      for one in answer.output if one.type == "function_call"]  # fmt: skip
        client.responses.create(model="m", input="More.", previous_response_id=answer.id)
    assert exact(trajectory.steps) == [False, *[True] * 4, False], texts(trajectory.steps)
    assert trajectory.steps[5].exact_turn is None
    assert len([row for row in trajectory.sequences() if len(row.step_ids) == 5]) == 1


def test_each_fork_sibling_and_sub_agent_continues_its_own() -> None:
    def script(request: Any, choice: int, messages: Any) -> Reply:
        return says(f"hello {messages[-1]['content']} {choice}")

    with ScriptedServer(script, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client = wrapped(server)
        first: list[Any] = [user("one")]
        both = client.chat.completions.create(model="m", messages=first, n=2).choices
        forks = [[*first, {"role": "assistant", "content": one.message.content}] for one in both]
        other: list[Any] = [{"role": "system", "content": "You help."}, user("two")]
        asked(client, other)
        for turn in range(3):
            for messages in (*forks, other):
                asked(client, messages, user(f"go {turn}"))
    steps = trajectory.steps
    assert exact(steps) == [False] * 3 + [True] * 9, texts(steps)
    check_steps(steps)
    begun = {step.id: step for step in steps}
    for step in steps[3:]:
        assert step.exact_turn is not None
        before = begun[step.exact_turn.step_id or ""]
        assert before.completion is not None
        assert step.messages is not None
        assert step.messages[len(before.messages or ())]["content"] == before.completion.content
    assert len(trajectory.sequences()) == 3


def test_threads_that_share_a_client_and_a_trajectory() -> None:
    with ScriptedServer(numbered, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client = wrapped(server)

        def work(name: str) -> None:
            messages: list[Any] = [user(name)]
            for turn in range(4):
                asked(client, messages, *([user(f"go {turn}")] if turn else []))

        threads = [threading.Thread(target=rt.propagate(work), args=(f"agent {at}",)) for at in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(exact(trajectory.steps)) == [False] * 6 + [True] * 18, texts(trajectory.steps)
    check_steps(trajectory.steps)
    assert len(trajectory.sequences()) == 6


REWRITTEN = {
    "no reasoning": lambda message: {**message, "reasoning": None},
    "no content": lambda message: {**message, "content": None},
    "empty content": lambda message: {**message, "content": ""},
    "parts": lambda message: {**message, "content": [], "refusal": None, "annotations": []},
    "keys": lambda message: {**message, "tool_calls": [_reordered(call) for call in message["tool_calls"]]},
    "name": lambda message: {**message, "name": "adder"},
}


def _reordered(call: dict[str, Any]) -> dict[str, Any]:
    arguments = dict(reversed(json.loads(call["function"]["arguments"]).items()))
    return {**call, "function": {"arguments": json.dumps(arguments), "name": call["function"]["name"]}}


@pytest.mark.parametrize("name", REWRITTEN)
def test_an_answer_that_a_framework_sends_back_in_its_own_shape(name: str) -> None:
    reply = Reply(None, [("tool", '{"b": 1,  "a": 2}')], "I think.")
    with ScriptedServer(lambda request: reply, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client, messages = wrapped(server), [dict(USER)]
        for _ in range(3):
            asked(client, messages, tools=TOOLS)
            messages[-1] = REWRITTEN[name](messages[-1])
            (call,) = messages[-1]["tool_calls"]
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": "result"})
    assert exact(trajectory.steps) == [False, True, True], texts(trajectory.steps)
    assert len(trajectory.sequences()) == 1


def test_an_edited_history_goes_out_as_text_and_says_which_message() -> None:
    with ScriptedServer(numbered, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client, messages = wrapped(server), [dict(USER)]
        asked(client, messages)
        asked(client, messages, user("two"))
        for at, text in ((0, "hi!"), (1, "Hello."), (2, "2")):
            edited = [dict(one) for one in messages]
            edited[at]["content"] = text
            said(client, [*edited, user("three")])
        said(client, [*messages, user("three")])
        # An answer that was thrown away: the request before it is continued as it stands.
        said(client, [*messages, user("three"), user("and four")])
    turns = [step.exact_turn for step in trajectory.steps[2:]]
    assert [turn and (turn.reason, turn.message) for turn in turns] == [
        ("history_changed", 0), ("history_changed", 1), ("history_changed", 2), (None, None), (None, None)]  # fmt: skip
    assert all(turn is not None and turn.is_exact for turn in turns[3:])
    check_steps(trajectory.steps)


def test_a_conversation_that_begins_with_answers_of_others_is_no_edited_one() -> None:
    begin: list[Any] = [user("a"), {"role": "assistant", "content": "b"}, user("c")]
    with ScriptedServer(numbered, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client = wrapped(server)
        asked(client, begin)
        asked(client, begin, user("d"))
    assert [step.exact_turn is None for step in trajectory.steps] == [True, False]
    assert exact(trajectory.steps) == [False, True]


CHANGED: dict[str, dict[str, Any]] = {
    "tools": {"tools": [*TOOLS, {"type": "function", "function": {"name": "other"}}]},
    "template": {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}},
    "model": {"model": "other"},
}


@pytest.mark.parametrize("name", CHANGED)
def test_other_tools_and_template_arguments_go_out_as_text(name: str) -> None:
    with ScriptedServer(numbered, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client, messages = wrapped(server), [dict(USER)]
        asked(client, messages, tools=TOOLS)
        messages.append(user("two"))
        client.chat.completions.create(**{"model": "m", "messages": messages, "tools": TOOLS, **CHANGED[name]})
    assert texts(trajectory.steps) == [None, "settings_changed"]


BY_TEXT_ALONE: dict[str, tuple[Any, dict[str, Any]]] = {
    "media": ([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}], {}),
    "echo": ("two", {"extra_body": {"echo": True}}),
    "continued": ("two", {"extra_body": {"add_generation_prompt": False}}),
    "field_in_use": ("two", {"extra_body": {"kv_transfer_params": {"do_remote_prefill": True}}}),
}


@pytest.mark.parametrize("reason", BY_TEXT_ALONE)
def test_what_cannot_be_served_as_ids(reason: str) -> None:
    content, options = BY_TEXT_ALONE[reason]
    with ScriptedServer(numbered, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client, messages = wrapped(server), [dict(USER)]
        asked(client, messages)
        asked(client, messages, {"role": "user", "content": content}, **options)
        sent = json.loads(server.requests[-1].body)
    assert texts(trajectory.steps) == [None, reason]
    assert sent.get("kv_transfer_params") == options.get("extra_body", {}).get("kv_transfer_params")


def test_an_answer_cut_by_a_limit_or_a_stop_text_gets_its_end_of_turn() -> None:
    answers = [says("hello", end=False), says("hello", end=False), Reply(token_ids=spelled("hello wor")), says("ok")]
    with ScriptedServer(answers, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client, messages = wrapped(server), [dict(USER)]
        asked(client, messages)
        asked(client, messages, user("two"))
        asked(client, messages, user("three"), stop=["wor"])
        asked(client, messages, user("four"))
    assert exact(trajectory.steps) == [False, True, True, True], texts(trajectory.steps)
    (row,) = trajectory.sequences()
    assert row.token_ids.tolist().count(TOKENIZER.eos_token_id) == 8
    assert row.loss_mask.sum() == 5 + 5 + 9 + 3
    check_steps(trajectory.steps[:3])


@pytest.mark.parametrize("server_of", [IgnoringServer, RefusingServer])
def test_a_server_that_ignores_or_refuses_ids_answers_as_without(server_of: type[ScriptedServer]) -> None:
    def conversation(server: ScriptedServer, engine: rt.Engine) -> tuple[list[Any], rt.Trajectory]:
        with rt.trajectory() as trajectory:
            client, messages = wrapped(server, engine), [USER]
            asked(client, messages)
            for turn in range(4):
                asked(client, messages, user(f"go {turn}"))
        return messages, trajectory

    with server_of(numbered, tokenizer=TOKENIZER) as server:
        plain, _ = conversation(server, BY_TEXT)
        n_requests = len(server.requests)
        messages, trajectory = conversation(server, ENGINE)
        sent = [ids_sent(one) is not None for one in server.requests[n_requests:] if "completions" in one.path]
    assert messages == plain
    first = "not_served" if server_of is IgnoringServer else "refused"
    assert texts(trajectory.steps) == [None, first, "refused", "refused", "refused"]
    # A refusal that names no field may be about these ids: the second one counts.
    assert sent.count(True) == (1 if server_of is IgnoringServer else 2)
    assert [step.token_issue for step in trajectory.steps] == [None] * 5


def test_a_server_without_a_tokenizer_endpoint() -> None:
    class Without(ScriptedServer):
        def answer(self, record: Any) -> Any:
            if record.path.endswith("/tokenize"):
                record.path = "/nowhere"
            return super().answer(record)

    with Without(numbered, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client, messages = wrapped(server), [dict(USER)]
        asked(client, messages)
        asked(client, messages, user("two"))
        asked(client, messages, user("three"))
        paths = [one.path for one in server.requests]
    assert texts(trajectory.steps) == [None, "tokenizer", "tokenizer"]
    assert paths.count("/nowhere") == 1


def test_thinking_is_kept_or_left_to_the_template() -> None:
    def conversation(server: ScriptedServer, engine: rt.Engine) -> list[rt.Step]:
        with rt.trajectory() as trajectory:
            client, messages = wrapped(server, engine), [USER]
            asked(client, messages)
            asked(client, messages, user("two"))
            asked(client, messages, user("three"))
        return trajectory.steps

    replies: list[Any] = [Reply("yes", (), "I think."), "no", "maybe"]
    with ScriptedServer([*replies, *replies], tokenizer=TOKENIZER) as server:
        kept = conversation(server, ENGINE)
        left = conversation(server, rt.Engine("vllm", exact_turns=True, thinking="template"))
    assert exact(kept) == [False, True, True]
    assert texts(left) == [None, "thinking", "thinking"]
    thought = TOKENIZER.special_ids["<think>"]
    assert [thought in ids_of(step.prompt_token_ids) for step in (kept[2], left[2])] == [True, False]


def test_it_is_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    with rt.recording(path), ScriptedServer(numbered, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client, messages = wrapped(server), [dict(USER)]
        asked(client, messages)
        asked(client, messages, user("two"))
        said(client, [user("Hi."), *messages[1:], user("three")])
    (read,) = rt.read(path)
    assert [step.exact_turn for step in read.steps] == [step.exact_turn for step in trajectory.steps]
    assert [step.exact_turn and step.exact_turn.reason for step in read.steps] == [None, None, "history_changed"]
    assert rt.read(path)


PROGRAM = """
import os, sys
import rollout_trace as rt
from rollout_trace import export
from tests.clients.exact_turns.test_exact_turns import USER, asked, user, wrapped
from types import SimpleNamespace

with rt.recording(sys.argv[2]), rt.trajectory():
    client, messages = wrapped(SimpleNamespace(base_url=sys.argv[1])), [USER]
    asked(client, messages)
    asked(client, messages, user("two"))
    os._exit(0)
"""


def test_it_is_in_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    with ScriptedServer(numbered, tokenizer=TOKENIZER) as server:
        subprocess.run([sys.executable, "-c", PROGRAM, server.base_url, path], check=True)
    (recovered,) = rt.recover(path)
    assert exact(recovered.steps) == [False, True]
    check_steps(recovered.steps)


def test_options_are_checked() -> None:
    with pytest.raises(TypeError, match="exact_turns='yes'"):
        rt.Engine("vllm", exact_turns="yes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="thinking='drop'"):
        rt.Engine("vllm", exact_turns=True, thinking="drop")  # type: ignore[arg-type]


def test_trainers_get_one_row_with_the_served_ids() -> None:
    with ScriptedServer(numbered, tokenizer=TOKENIZER) as server, rt.trajectory(task="t", group="g") as trajectory:
        client, messages = wrapped(server), [dict(USER)]
        for turn in range(4):
            asked(client, messages, *([user("go on")] if turn else []))
        trajectory.reward = 1.0
    last = trajectory.steps[-1]
    assert last.prompt_token_ids is not None
    assert last.completion_token_ids is not None
    served = [*last.prompt_token_ids.tolist(), *last.completion_token_ids.tolist()]
    trl = export.trl_rollout([trajectory])
    skyrl = export.skyrl([trajectory])
    (verl,) = export.verl([trajectory])
    ((prompt,), (response,)) = skyrl["prompt_token_ids"], skyrl["response_ids"]
    rows = [
        trl["prompt_ids"][0] + trl["completion_ids"][0],
        verl["prompt_ids"] + verl["response_ids"],
        prompt + response,
    ]
    assert rows == [served] * 3
    assert len(trl["prompt_ids"]) == 1
    (episode,) = export.verifiers([trajectory])
    (trace,) = episode["traces"]
    nodes = trace["nodes"]
    assert [token for node in nodes for token in node.get("token_ids") or ()] == served


def test_an_id_that_ends_a_completion_and_is_no_end_of_turn() -> None:
    """A newline stands behind the end of a turn: as the last id of a completion it is no end."""
    newline = ord("\n")
    answers = [Reply(token_ids=[*spelled("hello"), newline], stop_reason=newline), says("ok")]
    with ScriptedServer(answers, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client, messages = wrapped(server), [dict(USER)]
        asked(client, messages)
        asked(client, messages, user("two"))
    assert exact(trajectory.steps) == [False, True]
    assert ids_of(trajectory.steps[1].prompt_token_ids).count(TOKENIZER.eos_token_id) == 3


def test_an_answer_with_a_name_tells_the_conversation_whose_beginning_changed() -> None:
    with ScriptedServer(numbered, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client, messages = wrapped(server), [dict(USER)]
        asked(client, messages)
        said(client, [user("A summary."), {**messages[1], "name": "adder"}, user("two")])
    assert texts(trajectory.steps) == [None, "history_changed"]


def test_choices_that_say_the_same_with_other_thoughts() -> None:
    def script(request: Any, choice: int) -> Reply:
        return Reply("yes", (), f"thought {choice}")

    with ScriptedServer(script, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client = wrapped(server)
        choices = client.chat.completions.create(model="m", messages=[USER], n=2).choices
        for choice in (1, 0):
            answer = {"role": "assistant", "content": "yes", "reasoning": choices[choice].message.reasoning}
            said(client, [USER, answer, user("go")])
        said(client, [USER, {**answer, "reasoning": "redacted by the agent"}, user("go")])
    turns = [step.exact_turn for step in trajectory.steps[2:]]
    assert [turn and turn.step_id for turn in turns] == [trajectory.steps[1].id, trajectory.steps[0].id, None]
    assert [turn and turn.reason for turn in turns] == [None, None, "history_changed"]


def test_another_server_and_another_endpoint() -> None:
    with (
        ScriptedServer(numbered, tokenizer=TOKENIZER) as one,
        ScriptedServer(numbered, tokenizer=TOKENIZER) as two,
        rt.trajectory() as trajectory,
    ):
        messages: list[Any] = [dict(USER)]
        asked(wrapped(one), messages)
        said(wrapped(two), [*messages, user("go")])
        text = wrapped(one).completions.create(model="m", prompt="hi").choices[0].text
        said(wrapped(one), [user("hi"), {"role": "assistant", "content": text}, user("go")])
    assert texts(trajectory.steps)[1] == "settings_changed"
    assert not any(exact(trajectory.steps[:3]))


FIELDS: dict[str, tuple[str, dict[str, Any]]] = {
    "reasoning_effort": ("field", {"reasoning_effort": "low"}),
    "truncate": ("field", {"extra_body": {"truncate_prompt_tokens": 20}}),
    "documents": ("field", {"extra_body": {"documents": [{"text": "x"}]}}),
    "format": ("settings_changed", {"response_format": {"type": "json_object"}}),
    "choice": ("settings_changed", {"tools": TOOLS, "tool_choice": "required"}),
}


@pytest.mark.parametrize("name", FIELDS)
def test_fields_that_the_prompt_may_hold(name: str) -> None:
    reason, options = FIELDS[name]
    with ScriptedServer(numbered, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client, messages = wrapped(server), [dict(USER)]
        asked(client, messages, **({"tools": TOOLS} if "tools" in options else {}))
        asked(client, messages, user("two"), **options)
    assert texts(trajectory.steps) == [None, reason]


def test_media_in_an_earlier_message() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    with ScriptedServer(numbered, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client, messages = wrapped(server), [{"role": "user", "content": [{"type": "text", "text": "hi"}, image]}]
        asked(client, messages)
        asked(client, messages, user("two"))
    assert texts(trajectory.steps) == [None, "media"]


def test_an_answer_that_no_parser_reads_costs_no_tokens() -> None:
    deep = Reply(None, [("tool", "[" * 5000)])

    def script(request: Any, messages: Any) -> Reply:
        return deep if messages[-1]["content"] == "deep" else says("hello")

    with ScriptedServer(script, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client, messages, other = wrapped(server), [user("deep")], [user("other")]
        asked(client, messages, tools=TOOLS)
        messages.append({"role": "tool", "tool_call_id": messages[-1]["tool_calls"][0]["id"], "content": "no"})
        for _ in range(2):
            asked(client, messages, *([user("go")] if _ else []), tools=TOOLS)
            asked(client, other, *([user("go")] if _ else []))
    assert [step.token_issue for step in trajectory.steps] == [None] * 5
    assert exact(trajectory.steps) == [False, True, False, True, True]


def test_a_tokenizer_that_is_busy_for_a_moment_is_asked_again() -> None:
    class Busy(ScriptedServer):
        busy = True

        def answer(self, record: Any) -> Any:
            if record.path.endswith("/tokenize") and self.busy:
                self.busy = False
                return json_response(503, {"error": {"message": "busy"}})
            return super().answer(record)

    with Busy(numbered, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client, messages = wrapped(server), [dict(USER)]
        asked(client, messages)
        asked(client, messages, user("two"))
        asked(client, messages, user("three"))
    assert texts(trajectory.steps) == [None, "tokenizer", None]
    assert exact(trajectory.steps) == [False, False, True]
