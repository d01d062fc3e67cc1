"""``rt.fork``: the calls before a step are answered from the recording, those after it by the model."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from anthropic import Anthropic
from google import genai
from google.genai import types
from openai import AsyncOpenAI, NotFoundError, OpenAI

import rollout_trace as rt
from rollout_trace.clients.loopback.messages import SECRET_HEADER
from rollout_trace.testing import Reply, ScriptedServer
from rollout_trace.testing.recorded_answers import ANSWER_HEADER, AnswerServer, answers_of
from rollout_trace.view.difference import difference
from tests.amount import amount

CALLS = 20


def script(request: Mapping[str, Any], messages: list[dict[str, Any]]) -> Reply:
    """Asks for a tool until it has run often enough."""
    runs = sum(message["role"] == "tool" for message in messages)
    if runs + 1 < CALLS:
        return Reply(f"Step {runs}.", [("look", f'{{"place": {runs}}}')])
    return Reply("Done.")


@pytest.fixture
def server() -> Any:
    with ScriptedServer(script) as server:
        yield server


Agent = Callable[[str], list[Any]]
"""From the question to all that the agent read."""


def openai_chat(server: ScriptedServer, *, stream: bool = False, keep: bool = True) -> Agent:
    client = rt.wrap_openai(OpenAI(base_url=server.base_url, api_key="none"), engine="vllm", keep_bytes=keep)

    def agent(question: str) -> list[Any]:
        messages: list[Any] = [{"role": "user", "content": question}]
        read: list[Any] = []
        while True:
            if stream:
                with client.chat.completions.stream(model="m", messages=messages) as events:
                    answer: Any = events.get_final_completion()
            else:
                answer = client.chat.completions.create(model="m", messages=messages)
            message = answer.choices[0].message
            calls = [call.model_dump(include={"id", "type", "function"}) for call in message.tool_calls or ()]
            messages.append({"role": "assistant", "content": message.content, "tool_calls": calls})
            read.append(messages[-1])
            if not message.tool_calls:
                return read
            messages += [{"role": "tool", "tool_call_id": call.id, "content": "a wall"} for call in message.tool_calls]

    return agent


def openai_responses(server: ScriptedServer, *, keep: bool = True) -> Agent:
    client = rt.wrap_openai(OpenAI(base_url=server.base_url, api_key="none"), engine="vllm", keep_bytes=keep)

    def agent(question: str) -> list[Any]:
        items: list[Any] = [{"role": "user", "content": question}]
        read: list[Any] = []
        while True:
            answer = client.responses.create(model="m", input=items)
            items += (output := [one.model_dump(exclude_none=True) for one in answer.output])
            # Without what is known of answers whose bytes were kept alone.
            read.append([(one["type"], one.get("call_id"), one.get("arguments"), _texts(one)) for one in output])
            calls = [one for one in output if one["type"] == "function_call"]
            if not calls:
                return read
            items += [{"type": "function_call_output", "call_id": one["call_id"], "output": "a wall"} for one in calls]

    return agent


def _texts(item: dict[str, Any]) -> list[str]:
    return [part["text"] for part in item.get("content", ())]


def anthropic(server: ScriptedServer, *, stream: bool = False, keep: bool = True) -> Agent:
    client = rt.wrap_anthropic(Anthropic(base_url=server.url, api_key="none"), keep_bytes=keep)

    def agent(question: str) -> list[Any]:
        messages: list[Any] = [{"role": "user", "content": question}]
        read: list[Any] = []
        while True:
            if stream:
                with client.messages.stream(model="m", max_tokens=500, messages=messages) as events:
                    answer: Any = events.get_final_message()
            else:
                answer = client.messages.create(model="m", max_tokens=500, messages=messages)
            content = [block.model_dump(include={"type", "text", "id", "name", "input"}) for block in answer.content]
            read.append(content)
            messages.append({"role": "assistant", "content": content})
            uses = [block for block in content if block["type"] == "tool_use"]
            if not uses:
                return read
            results = [{"type": "tool_result", "tool_use_id": one["id"], "content": "a wall"} for one in uses]
            messages.append({"role": "user", "content": results})

    return agent


def google(server: ScriptedServer, *, keep: bool = True) -> Agent:
    client = rt.wrap_google(
        genai.Client(api_key="none", http_options=types.HttpOptions(base_url=server.url)), keep_bytes=keep
    )

    def agent(question: str) -> list[Any]:
        contents: list[Any] = [types.Content(role="user", parts=[types.Part(text=question)])]
        read: list[Any] = []
        while True:
            answer = client.models.generate_content(model="m", contents=contents)
            assert answer.candidates
            content = answer.candidates[0].content
            assert content is not None
            read.append(content.model_dump(exclude_none=True))
            contents.append(content)
            if not answer.function_calls:
                return read
            results = [types.FunctionResponse(id=one.id, name=one.name, response={"found": "a wall"})
                       for one in answer.function_calls]  # fmt: skip
            contents.append(types.Content(role="user", parts=[types.Part(function_response=one) for one in results]))

    return agent


AGENTS: dict[str, Callable[..., Agent]] = {
    "openai": openai_chat,
    "openai, streamed": lambda server, keep: openai_chat(server, stream=True, keep=keep),
    "responses": openai_responses,
    "anthropic": anthropic,
    "anthropic, streamed": lambda server, keep: anthropic(server, stream=True, keep=keep),
    "google": google,
}


def record(path: Path, agent: Agent, **facts: Any) -> tuple[rt.Trajectory, list[Any]]:
    with rt.recording(path), rt.trajectory(**facts):
        read = agent("What is there?")
    (*_, recorded) = rt.read(path)
    return recorded, read


CASES = [
    pytest.param(name, keep, id=f"{name}, {'with' if keep else 'without'} bytes",
                 marks=() if name == "openai" or (keep and "streamed" not in name) else pytest.mark.more)
    for name in AGENTS for keep in (True, False)
]  # fmt: skip


@pytest.mark.parametrize(("name", "keep"), CASES)
def test_nothing_leaves_before_the_step(server: ScriptedServer, tmp_path: Path, name: str, keep: bool) -> None:
    agent = AGENTS[name](server, keep=keep)
    origin, read = record(tmp_path / "rollouts.jsonl", agent)
    for step in (7, 1, 19)[: 3 if name == "openai" else amount(1, 3, 3)]:
        before = len(server.requests)
        with rt.recording(tmp_path / "rollouts.jsonl"), rt.fork(origin, step) as branch:
            again = agent("What is there?")
        assert len(server.requests) - before == CALLS - step
        assert again[:step] == read[:step]
        (*_, written) = rt.read(tmp_path / "rollouts.jsonl")
        assert [one.status for one in written.steps] == ["cached"] * step + ["ok"] * (CALLS - step)
        assert written.forked_from is not None
        assert (written.id, written.forked_from.id, written.forked_from.step) == (branch.id, origin.id, step)


def test_the_bytes_are_those_that_were_recorded(server: ScriptedServer, tmp_path: Path) -> None:
    client = rt.wrap_openai(OpenAI(base_url=server.base_url, api_key="none"), engine="vllm", keep_bytes=True)

    def agent(question: str) -> list[Any]:
        asked: Any = {"model": "m", "messages": [{"role": "user", "content": question}]}
        whole = client.chat.completions.with_raw_response.create(**asked).content
        with client.chat.completions.with_streaming_response.create(**asked, stream=True) as answer:
            return [whole, b"".join(answer.iter_bytes())]

    origin, read = record(tmp_path / "rollouts.jsonl", agent)
    before = len(server.requests)
    with rt.fork(origin, 2):
        assert agent("What is there?") == read
    assert len(server.requests) == before


def test_each_row_is_trained_on_once_and_the_group_has_all(server: ScriptedServer, tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    agent = openai_chat(server)
    origin, _ = record(path, agent, group="task", task="task")
    with rt.recording(path):
        for at in range(8):
            with rt.fork(origin, 7) as branch:
                agent("What is there?")
                branch.reward = float(at)
    first, *branches = rt.read(path)
    assert difference(first, branches[0]).fork == ["a", "└─ b, after 7 calls of a"]
    assert difference(branches[0], first).fork == ["b", "└─ a, after 7 calls of b"]
    siblings = difference(branches[0], branches[1])
    assert siblings.fork == [first.id, "├─ a, after 7 calls of it", "└─ b, after 7 calls of it"]
    # That they were answered from the recording is no difference.
    assert siblings.first is difference(first, branches[0]).first is None
    first.reward = 0.0
    (group,) = rt.groups([first, *branches])
    assert len(group.trajectories) == 9
    trained = [name for one in (first, *branches) for row in one.sequences() for name in row.step_ids]
    assert len(trained) == len(set(trained)) == CALLS + 8 * (CALLS - 7)
    for one in branches:
        (row,) = one.sequences()
        # The prefix is prompt: what the recorded run sampled has mask 0.
        assert row.token_ids[: row.prompt_length].tolist() == list(one.steps[7].prompt_token_ids)  # type: ignore[arg-type]
        assert not row.loss_mask[: row.prompt_length].any()
        assert one.group_id == "task"


CHANGES: dict[str, Callable[[dict[str, Any], random.Random], str]] = {}


def _change(name: str) -> Callable[[Callable[[dict[str, Any], random.Random], str]], None]:
    return lambda function: CHANGES.update({name: function})


@_change("a text")
def _text(asked: dict[str, Any], seed: random.Random) -> str:
    at = seed.randrange(len(asked["messages"]))
    asked["messages"][at] = {**asked["messages"][at], "content": f"other {seed.random()}"}
    return f"messages.{at}.content"


@_change("a setting")
def _setting(asked: dict[str, Any], seed: random.Random) -> str:
    asked["temperature"] = seed.random()
    return "temperature"


@_change("a tool")
def _tool(asked: dict[str, Any], seed: random.Random) -> str:
    asked["tools"] = [{"type": "function", "function": {"name": f"tool_{seed.randrange(9)}"}}]
    return "tools"


@_change("the model")
def _model(asked: dict[str, Any], seed: random.Random) -> str:
    asked["model"] = f"model-{seed.randrange(9)}"
    return "model"


@_change("a message more")
def _more(asked: dict[str, Any], seed: random.Random) -> str:
    asked["messages"].append({"role": "user", "content": f"{seed.random()}"})
    return f"messages.{len(asked['messages']) - 1}"


@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.more) for seed in range(5, 30))])
def test_a_difference_is_named(server: ScriptedServer, tmp_path: Path, seed: int) -> None:
    chosen = random.Random(seed)
    change = list(CHANGES.values())[seed % len(CHANGES)]
    at, expected = chosen.randrange(6), []
    client = rt.wrap_openai(OpenAI(base_url=server.base_url, api_key="none", max_retries=0))

    def agent(changes: bool) -> None:
        for call in range(7):
            asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": f"call {call}"}]}
            asked["messages"] += [{"role": "assistant", "content": "so"}, {"role": "user", "content": "and"}]
            if changes and call == at:
                expected.append(change(asked, chosen))
            client.chat.completions.create(**asked)

    def unchanged(_: str) -> list[Any]:
        agent(False)
        return []

    origin, _ = record(tmp_path / "rollouts.jsonl", unchanged)
    before = len(server.requests)
    with pytest.raises(rt.ForkDifference) as raised, rt.fork(origin, 7):
        agent(True)
    assert f"call {at + 1} of 7: it differs from the recorded one in {expected[0]}" in str(raised.value)
    assert len(server.requests) == before
    with rt.fork(origin, 7, on_difference="live") as branch:
        agent(True)
    assert len(server.requests) == before + 7 - at
    assert branch.forked_from is not None
    assert branch.forked_from.step == at
    assert expected[1] in str(branch.forked_from.difference)
    assert [one.status for one in branch.steps] == ["cached"] * at + ["ok"] * (7 - at)


def asking(server: ScriptedServer, **options: Any) -> Callable[..., Any]:
    """A client as a function of the text that it asks."""
    client = rt.wrap_openai(
        OpenAI(base_url=server.base_url, api_key="none", max_retries=0, **options), engine="vllm", keep_bytes=True
    )

    def ask(text: str, **more: Any) -> Any:
        return client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}], **more)

    return ask


def three(ask: Callable[..., Any]) -> rt.Trajectory:
    with rt.trajectory() as recorded:
        for text in "ABC":
            ask(text)
    return recorded


def test_what_was_answered_is_cached_in_whatever_order(server: ScriptedServer) -> None:
    ask = asking(server)
    origin = three(ask)
    before = len(server.requests)
    with rt.fork(origin, 2, on_difference="live") as branch:
        ask("B")
        ask("other")
    assert [one.status for one in branch.steps] == ["cached", "ok"]
    assert branch.forked_from is not None
    assert branch.forked_from.step == 1
    # A call that was recorded behind the step, perhaps at the same time, goes to the model and is no difference.
    with rt.fork(origin, 2) as branch:
        for text in "CAB":
            ask(text)
    assert [one.status for one in branch.steps] == ["ok", "cached", "cached"]
    assert len(server.requests) == before + 2


def test_a_stream_may_be_read_after_the_block_and_an_answer_streamed_anew(server: ScriptedServer) -> None:
    ask = asking(server)
    with rt.trajectory() as origin:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in ask("S", stream=True) if chunk.choices)
        ask("W")
    with rt.fork(origin, 2) as branch:
        stream = ask("S", stream=True)
        again = "".join(chunk.choices[0].delta.content or "" for chunk in ask("W", stream=True) if chunk.choices)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices) == text == again
    assert [one.status for one in branch.steps] == ["cached", "cached"]


class OwnTransport(httpx.BaseTransport):
    """Sends by another library."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        sent = urllib.request.Request(str(request.url), request.read(), {"content-type": "application/json"})
        with urllib.request.urlopen(sent) as answer:
            return httpx.Response(answer.status, headers={"content-type": "application/json"}, content=answer.read())


def test_what_reaches_the_model_before_its_turn_is_said(server: ScriptedServer) -> None:
    origin = three(asking(server))
    elsewhere = asking(server, http_client=httpx.Client(transport=OwnTransport()))
    with pytest.raises(rt.ForkDifference, match="2 calls went to the model, and 2 of 2"), rt.fork(origin, 2):
        list(map(elsewhere, "AB"))


def test_after_a_difference_nothing_is_paid_for_and_ctrl_c_stays_what_it_is(server: ScriptedServer) -> None:
    ask = asking(server)
    origin = three(ask)
    before = len(server.requests)

    def agent() -> None:
        for text in ("other", "B", "C"):
            with contextlib.suppress(NotFoundError):
                ask(text)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), rt.fork(origin, 2) as branch:
        agent()
    assert len(server.requests) == before
    assert [one.status for one in branch.steps] == ["error"] * 3


def test_forks_at_the_same_time_do_not_mix(server: ScriptedServer, tmp_path: Path) -> None:
    client = rt.wrap_openai(AsyncOpenAI(base_url=server.base_url, api_key="none"))

    async def agent(name: str) -> list[str | None]:
        read: list[str | None] = []
        for call in range(6):
            messages: Any = [{"role": "user", "content": f"{name} {call}"}]
            answer = await client.chat.completions.create(model="m", messages=messages)
            read.append(answer.id)
        return read

    async def recorded(name: str) -> list[str | None]:
        async with rt.trajectory(name):
            return await agent(name)

    async def branch(origin: rt.Trajectory) -> tuple[list[str | None], rt.Trajectory]:
        async with rt.fork(origin, 3) as made:
            return await agent(origin.name), made

    async def run() -> None:
        with rt.recording(tmp_path / "rollouts.jsonl"):
            ids = await asyncio.gather(*(recorded(f"agent {at}") for at in range(6)))
        origins = {one.name: one for one in rt.read(tmp_path / "rollouts.jsonl")}
        before = len(server.requests)
        made = await asyncio.gather(*(branch(origins[f"agent {at}"]) for at in range(6)))
        assert len(server.requests) - before == 6 * 3
        assert len(ids) == len(made)
        for at, (_, trajectory) in enumerate(made):
            assert trajectory.name == f"agent {at}"
            assert [one.status for one in trajectory.steps] == ["cached"] * 3 + ["ok"] * 3
        await client.close()

    asyncio.run(run())


def test_recorded_results_of_tools(server: ScriptedServer, tmp_path: Path) -> None:
    runs = []

    def tool(place: int) -> str:
        try:
            return str(rt.recorded_tool("look"))
        except LookupError:
            with rt.tool_run("look", arguments={"place": place}) as run:
                runs.append(place)
                run.result = f"wall {place}"
            return f"wall {place}"

    def agent(_: str) -> list[Any]:
        return [tool(place) for place in range(3)]

    client = openai_chat(server)
    with rt.recording(tmp_path / "rollouts.jsonl"), rt.trajectory():
        client("What is there?")
        first = agent("")
    (origin,) = rt.read(tmp_path / "rollouts.jsonl")
    with rt.fork(origin, 2, tools="recorded"):
        assert agent("") == first
    assert runs == [0, 1, 2]
    with rt.fork(origin, 2), pytest.raises(LookupError, match="no such run is recorded"):
        rt.recorded_tool("look")
    with pytest.raises(LookupError, match=r"outside of rt\.fork"):
        rt.recorded_tool("look")


def with_helpers(ask: Callable[..., Any], names: str) -> None:
    """Two calls of the agent itself, between them one of a sub-agent for each name, whose own helper asks too."""
    ask("begin")
    for name in names:
        with rt.trajectory("helper"), rt.trajectory("inner"):
            ask(f"help with {name}")
    ask("end")


def test_calls_of_sub_agents_are_answered(
    server: ScriptedServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ask = asking(server)
    path = tmp_path / "rollouts.jsonl"
    with rt.recording(path), rt.trajectory("solver"):
        with_helpers(ask, "AB")
    family = list(rt.read(path))
    origin = next(one for one in family if one.name == "solver")
    before = len(server.requests)
    with rt.recording(path), rt.fork(origin, 1, children=rt.read(path)) as branch:
        with_helpers(ask, "AB")
    assert len(server.requests) == before + 1
    assert b"end" in server.requests[-1].body
    made = {one.id: one for one in list(rt.read(path))[len(family) :]}
    origins = {one.id: one for one in family}
    assert len(made) == len(origins) == 5
    ids = {one.id: one.forked_from.id for one in made.values() if one.forked_from is not None}
    for one in made.values():
        recorded = origins[ids[one.id]]
        assert (one.name, [s.messages for s in one.steps]) == (recorded.name, [s.messages for s in recorded.steps])
        expected = ["cached", "ok"] if one.id == branch.id else ["cached"] * len(one.steps)
        assert [step.status for step in one.steps] == expected
        # The tree is the recorded one.
        assert (None if one.parent_id is None else ids[one.parent_id]) == recorded.parent_id
    differs = "call 1 of 1 of the sub-agent 'inner': it differs"
    with pytest.raises(rt.ForkDifference, match=differs), rt.fork(origin, 1, children=family):
        with contextlib.suppress(NotFoundError):
            with_helpers(ask, "C")
    unknown = "it was made by a sub-agent 'other', which the recorded run had not"
    with pytest.raises(rt.ForkDifference, match=unknown), rt.fork(origin, 1, children=family), rt.trajectory("other"):
        ask("begin")
    assert len(server.requests) == before + 1
    # Nobody said what they are.
    with rt.fork(origin, 1):
        with_helpers(ask, "AB")
    assert len(server.requests) == before + 1 + 3
    assert "the calls of the sub-agent 'inner' go to the model" in caplog.text


KILLED = """
import os, sys
import rollout_trace as rt
from openai import OpenAI
from rollout_trace.testing import ScriptedServer

def agent(client):
    for call in range(4):
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": f"call {call}"}])

with ScriptedServer(lambda request: "So.") as server:
    client = rt.wrap_openai(OpenAI(base_url=server.base_url, api_key="none"), engine="vllm", keep_bytes=True)
    with rt.trajectory() as origin:
        agent(client)
    with rt.recording(sys.argv[1]), rt.fork(origin, 3):
        agent(client)
        os._exit(9)
"""


@pytest.mark.processes
def test_what_a_killed_process_leaves_is_not_trained_on_twice(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "rollouts.jsonl")], check=False)
    assert done.returncode == 9
    (left,) = rt.recover(tmp_path / "rollouts.jsonl")
    assert [one.status for one in left.steps] == ["cached"] * 3 + ["ok"]
    assert left.status == "aborted"


def test_what_cannot_be_forked(server: ScriptedServer, tmp_path: Path) -> None:
    origin, _ = record(tmp_path / "rollouts.jsonl", openai_chat(server))
    with pytest.raises(ValueError, match=r"step=21: trajectory '.*' has 20 model calls"):
        rt.fork(origin, 21)
    with pytest.raises(ValueError, match="step=0: trajectory"):
        rt.fork(origin, 0)
    with pytest.raises(TypeError, match="give a whole number"):
        rt.fork(origin, "12")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"rt\.fork\(\) takes a trajectory"):
        rt.fork("rollouts.jsonl", 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="on_difference is 'stop'; give 'raise' or 'live'"):
        rt.fork(origin, 1, on_difference="stop")  # type: ignore[arg-type]
    made = rt.fork(origin, 1)
    with made:
        pass
    with pytest.raises(RuntimeError, match="entered before"), made:
        pass


def test_answers_are_given_to_the_agent_alone(server: ScriptedServer) -> None:
    origin = three(asking(server))
    with AnswerServer(answers_of(origin, None)) as answers:

        def status(headers: Mapping[str, str]) -> int:
            body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "A"}]}).encode()
            request = urllib.request.Request(f"{answers.base_url}/chat/completions", body, dict(headers))
            try:
                with urllib.request.urlopen(request) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as error:
                error.close()
                return error.code

        ours = answers.headers(0)
        assert [status(one) for one in (ours, {}, {ANSWER_HEADER: "0"}, {**ours, SECRET_HEADER: "x"})] == [
            200, 404, 404, 404,
        ]  # fmt: skip
        assert not answers.requests
