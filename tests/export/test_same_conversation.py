"""One conversation stays one in whatever form an agent sends it back: under its name, or in parts of text."""

from __future__ import annotations

from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.export import ExportReport, atif, chat, trl_dpo, trl_kto, verifiers, verl_prompts
from rollout_trace.testing import Reply
from tests.consumers import recorded

Message = dict[str, Any]


def as_langchain(message: Message) -> Message:
    """An answer as `create_agent(name="adder")` sends it back."""
    return {**message, "name": "adder"} if message["role"] == "assistant" else message


def in_parts(message: Message) -> Message:
    """Contents as smolagents and Strands send them: lists of parts, here each of two."""
    if message["role"] not in ("system", "user"):
        return message
    content = message["content"]
    return {**message, "content": [{"type": "text", "text": text} for text in (content[:3], content[3:])]}


def answering(request: Message) -> Reply:
    asked = sum(message["role"] == "tool" for message in request["messages"])
    return Reply("Adding." if not asked else None, [("add", '{"a": 1}')]) if asked < 2 else Reply("The sum is 6.")


def runs(change: Any) -> list[rt.Trajectory]:
    """Recorded runs of an agent that sends its messages in another form."""
    with recorded.model(answering) as (_, client):
        rt.wrap_openai(client, engine="vllm")
        found = []
        for reward in (1.0, 0.0):
            with rt.trajectory("adder", group="add", task="add") as trajectory:
                talk(client, change)
                trajectory.reward = reward
            found.append(trajectory)
    return found


def talk(client: Any, change: Any) -> None:
    messages: list[Message] = [recorded.SYSTEM, {"role": "user", "content": "[1, 2, 3]"}]
    for _ in range(3):
        sent: Any = [change(message) for message in messages]
        answer = client.chat.completions.create(model="m", messages=sent, tools=recorded.TOOLS).choices[0].message
        messages.append(answer.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
        for call in answer.tool_calls or ():
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(len(messages))})


def test_an_agents_name_makes_no_other_conversation() -> None:
    found = runs(as_langchain)
    assert [message.get("name") for message in found[0].steps[1].messages or ()].count("adder") == 1
    rows = chat(found, weight=True)
    assert len(rows) == 2
    assert [message["weight"] for message in rows[0]["messages"] if message["role"] == "assistant"] == [1] * 3
    assert [row["label"] for row in trl_kto(found)] == [True, False]
    assert len(trl_dpo(found)) == 1


def test_an_answer_that_was_sent_back_under_a_name_is_no_copied_context() -> None:
    for document in atif(runs(as_langchain)):
        assert not [step for step in document["steps"] if step.get("is_copied_context")]
        assert not [step for step in document["steps"] if "follows" in step.get("extra", {})]
    for episode in verifiers(runs(as_langchain)):
        roles = [node["message"]["role"] for node in episode["traces"][0]["nodes"]]
        assert roles == ["system", "user", "assistant", "tool", "assistant", "tool", "assistant"]


def test_messages_of_two_speakers_are_two() -> None:
    """A name on what no model of this run said tells who said it."""
    steps = [
        rt.Step(
            id=str(at), call_id=str(at), protocol="openai.chat", completion=rt.Completion(content="ok"),
            messages=[{"role": role, "name": name, "content": "hello"}],
        )
        for at, (role, name) in enumerate([("user", "a"), ("user", "b"), ("assistant", "a"), ("assistant", "b")])
    ]  # fmt: skip
    assert [row["messages"][0]["name"] for row in chat(rt.Trajectory(steps=steps))] == ["a", "b", "a", "b"]


def texts(row: Message, name: str) -> list[Any]:
    return [message["content"] for message in row[name] if message["role"] != "assistant"]


def test_parts_of_text_are_one_text() -> None:
    """Joined with a newline, as vLLM and llama-server render them for a template that takes texts."""
    found = runs(in_parts)
    system = recorded.SYSTEM["content"]
    expected = [f"{system[:3]}\n{system[3:]}", "[1,\n 2, 3]"]
    (row, _) = chat(found)
    assert texts(row, "messages")[:2] == expected
    assert all(isinstance(text, str) for text in texts(row, "messages"))
    (pair,) = trl_dpo(found)
    assert texts(pair, "prompt") == expected
    assert all(isinstance(text, str) for text in texts(pair, "chosen"))
    (prompt,) = verl_prompts(found, data_source="adding", ability="math", report=ExportReport())
    assert texts(prompt, "prompt") == expected


@pytest.mark.parametrize("per", ["conversation", "step"])
def test_parts_stay_where_they_are_asked_for(per: Any) -> None:
    rows = chat(runs(in_parts), content="parts", per=per)
    assert texts(rows[0], "messages")[1] == [{"type": "text", "text": "[1,"}, {"type": "text", "text": " 2, 3]"}]
    with pytest.raises(ValueError, match="content='list': expected 'text' or 'parts'"):
        chat([], content="list")  # type: ignore[arg-type]


def test_parts_that_a_text_cannot_be_stay() -> None:
    content = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": recorded.IMAGE}}]
    step = rt.Step(
        id="a", call_id="a", protocol="openai.chat", messages=[{"role": "user", "content": content}],
        completion=rt.Completion(content="A dot."),
    )  # fmt: skip
    assert chat(rt.Trajectory(steps=[step]))[0]["messages"][0]["content"] == content
