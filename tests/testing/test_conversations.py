"""Scripts by conversation and by content: parallel ones, repeated ones, faults in the middle, every protocol."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai import OpenAI

from rollout_trace.testing import Fault, Reply, ScriptedServer, by_content, by_conversation, when
from rollout_trace.testing.script import Answer
from tests.testing.asking import chat, post

LIMITED = Fault(status=429, headers={"retry-after-ms": "1"})


def weather(request: Any) -> Iterator[Answer]:
    """A conversation as a generator, which sees each request."""
    task = request["messages"][0]["content"]
    request = yield Reply(tool_calls=[("weather", "{}")])
    assert request["messages"][-1]["role"] == "tool"
    yield f"{task}: {request['messages'][-1]['content']}"


def run(server: ScriptedServer, task: str) -> str:
    """An agent with a tool."""
    messages: list[Any] = [{"role": "user", "content": task}]
    with OpenAI(base_url=server.base_url, api_key="none", max_retries=2) as client:
        while True:
            message = client.chat.completions.create(model="m", messages=messages).choices[0].message
            if not message.tool_calls:
                return str(message.content)
            messages.append(message.model_dump(exclude_none=True))
            messages += [{"role": "tool", "tool_call_id": call.id, "content": "sun"} for call in message.tool_calls]


def test_a_generator_is_one_conversation_and_a_second_run_is_another() -> None:
    script = by_conversation(weather)
    with ScriptedServer(script) as server:
        assert [run(server, "Paris"), run(server, "Rome"), run(server, "Paris")] == [
            "Paris: sun",
            "Rome: sun",
            "Paris: sun",
        ]
    assert script.count == 3


def test_parallel_conversations_are_independent_even_with_the_same_task() -> None:
    numbers = iter(range(1000))
    guard = threading.Lock()

    def steps(request: Any) -> list[Answer]:
        with guard:
            number = next(numbers)
        # Each conversation says its own number in every step: an answer from another one would show.
        return [
            Reply(str(number), tool_calls=[("f", str(number))]),
            Reply(str(number), tool_calls=[("f", "1")]),
            str(number),
        ]

    def agent(task: str) -> list[str]:
        messages: list[Any] = [{"role": "user", "content": task}]
        said: list[str] = []
        with OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
            for _ in range(3):
                message = client.chat.completions.create(model="m", messages=messages).choices[0].message
                said.append(str(message.content))
                messages.append(message.model_dump(exclude_none=True))
                messages += [{"role": "tool", "tool_call_id": c.id, "content": "."} for c in message.tool_calls or ()]
        return said

    script = by_conversation(steps)
    with ScriptedServer(script) as server, ThreadPoolExecutor(8) as pool:
        found = list(pool.map(agent, ["same", "same", "other", "same"] * 8))
    assert all(len(set(said)) == 1 for said in found)
    assert sorted(int(said[0]) for said in found) == list(range(32))
    assert (script.count, server.answers_left) == (32, 0)


def test_a_dict_of_conversations_by_a_text_of_the_task() -> None:
    script = by_conversation({"weather": ["Where?", "Sunny."], "joke": lambda request: "Ha.", "": "What?"})
    with ScriptedServer(script) as server:
        assert chat(server, "the weather, please") == "Where?"
        assert chat(server, "tell a joke") == "Ha."
        assert server.answers_left == 1
        assert chat(server, "the weather, please", "Where?", "Paris") == "Sunny."
        assert chat(server, "anything") == "What?"


def test_the_first_messages_of_a_conversation_whatever_the_protocol() -> None:
    def echo(request: Any, *, messages: Any) -> list[Answer]:
        return [f"you said {messages[-1]['content']}"]

    with ScriptedServer(by_conversation(echo)) as server:
        assert chat(server, "a") == "you said a"
        google = post(server, GOOGLE, {"contents": [{"role": "user", "parts": [{"text": "b"}]}]})[1]
        assert json.loads(google)["candidates"][0]["content"]["parts"] == [{"text": "you said b"}]


def test_a_task_that_no_conversation_is_for() -> None:
    with pytest.raises(LookupError, match="no conversation that begins with 'news', only 'weather'"):
        with ScriptedServer(by_conversation({"weather": "x"})) as server:
            assert "LookupError" in chat(server, "news")


@pytest.mark.parametrize("answers", [["one"], (answer for answer in ["one"])])
def test_a_conversation_that_goes_on_too_long(answers: Any) -> None:
    server = ScriptedServer(by_conversation(lambda request: answers)).start()
    assert chat(server, "a") == "one"
    assert "came, but" in chat(server, "a", "one", "b")
    with pytest.raises(IndexError, match=r"request 2 .*came, but"), server:
        pass


def test_faults_by_step_of_each_conversation_take_no_answer() -> None:
    script = by_conversation(lambda request: ["one", "two"], faults={1: LIMITED, 3: LIMITED})
    with ScriptedServer(script) as server, OpenAI(base_url=server.base_url, api_key="none", max_retries=1) as client:
        for task in ("a", "b"):
            messages: Any = [{"role": "user", "content": task}]
            for expected in ("one", "two"):
                text = client.chat.completions.create(model="m", messages=messages).choices[0].message.content
                assert text == expected
                messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "go on"}]
    assert [record.status for record in server.requests] == [429, 200] * 4
    assert server.answers_left == 0


def test_an_equal_request_in_the_middle_gets_the_same_answer_again() -> None:
    with ScriptedServer(by_conversation(lambda request: ["one", "two"])) as server:
        chat(server, "a")
        assert [chat(server, "a", "one", "b") for _ in range(2)] == ["two", "two"]


def test_an_agent_that_changed_its_history_stays_in_its_conversation() -> None:
    with ScriptedServer(by_conversation(lambda request: ["one", "two", "three"])) as server:
        chat(server, "a")
        chat(server, "a", "one", "long result")
        assert chat(server, "a", "one", "(cut)", "two", "b") == "three"


def test_a_text_that_grows_is_one_conversation() -> None:
    def ask(prompt: str) -> str:
        return str(json.loads(post(server, "/v1/completions", {"prompt": prompt})[1])["choices"][0]["text"])

    with ScriptedServer(by_conversation(lambda request: ["one", "two"])) as server:
        assert [ask("Q: "), ask("Q: one, A: "), ask("Other")] == ["one", "two", "one"]


def test_responses_that_the_server_stores_are_one_conversation() -> None:
    with ScriptedServer(by_conversation(lambda request: ["one", "two"])) as server:
        with OpenAI(base_url=server.base_url, api_key="none") as client:
            first = client.responses.create(model="m", input="a")
            second = client.responses.create(model="m", input="b", previous_response_id=first.id)
    assert (first.output_text, second.output_text) == ("one", "two")


RULES = by_content(
    when(tool="weather").then("It is sunny."),
    when("weather", turn=0).then(Reply(tool_calls=[("weather", '{"city": "Paris"}')])),
    when(system="terse").then("No."),
    otherwise="I do not know.",
)
GOOGLE = "/v1beta/models/m:generateContent"


def test_rules_by_content() -> None:
    with ScriptedServer(RULES) as server:
        assert run(server, "the weather?") == "It is sunny."
        assert chat(server, "hello") == "I do not know."
        system = [{"role": "system", "content": "be terse"}, {"role": "user", "content": "hello"}]
        assert "No." in post(server, "/v1/chat/completions", {"messages": system})[1].decode()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "/v1/messages",
            {
                "max_tokens": 99,
                "messages": [
                    {"role": "user", "content": "weather"},
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "weather", "input": {}}]},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "sun"}]},
                ],
            },
        ),
        (
            "/v1/responses",
            {
                "input": [
                    {"role": "user", "content": "weather"},
                    {"type": "function_call", "call_id": "1", "name": "weather", "arguments": "{}"},
                    {"type": "function_call_output", "call_id": "1", "output": "sun"},
                ]
            },
        ),
        (
            GOOGLE,
            {
                "contents": [
                    {"role": "user", "parts": [{"text": "weather"}]},
                    {"role": "model", "parts": [{"functionCall": {"id": "1", "name": "weather", "args": {}}}]},
                    {"role": "user", "parts": [{"functionResponse": {"id": "1", "name": "weather", "response": {}}}]},
                ]
            },
        ),
        (
            "/api/chat",
            {
                "stream": False,
                "messages": [
                    {"role": "user", "content": "weather"},
                    {"role": "assistant", "tool_calls": [{"function": {"name": "weather", "arguments": {}}}]},
                    {"role": "tool", "tool_name": "weather", "content": "sun"},
                ],
            },
        ),
    ],
)
def test_the_same_rules_serve_every_protocol(path: str, body: dict[str, Any]) -> None:
    with ScriptedServer(RULES) as server:
        status, answer, _ = post(server, path, body)
    assert (status, b"It is sunny." in answer) == (200, True)


def test_a_request_that_no_rule_is_for() -> None:
    with pytest.raises(LookupError, match="no rule matches a request whose last message is 'b'"):
        with ScriptedServer(by_content(when("a").then("x"))) as server:
            chat(server, "b")
    with pytest.raises(TypeError, match=r"give it rules, as when\('text'\)"):
        by_content("x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="give it a function of the first request, or a dict"):
        by_conversation(["x"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"give it to by_conversation\(\)"):
        ScriptedServer({"a": "b"})  # type: ignore[arg-type]
