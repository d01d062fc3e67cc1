"""Models alone and in chains: what is wrapped, batches, caches, and models whose bytes nobody sees."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.caches import InMemoryCache
from langchain_core.language_models import FakeListLLM, FakeMessagesListChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.outputs import ChatGenerationChunk
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

import rollout_trace as rt
from rollout_trace.testing import Fault, ScriptedServer
from rollout_trace_langchain import RolloutCallbackHandler, record, runs

from .agents import UNKEPT, WAYS, add, adder, chat, question, serving, three_turns
from .oracle import assert_as_served, content_of


def echo(request: Any) -> str:
    return f"re: {request['messages'][-1]['content']}"


def said(step: rt.Step) -> Any:
    assert step.completion is not None
    return step.completion.content


def anthropic(server: ScriptedServer) -> ChatAnthropic:
    return ChatAnthropic(
        model="m",  # type: ignore[call-arg]
        base_url=server.url,
        api_key="none",  # type: ignore[arg-type]
        max_retries=0,
        default_headers=UNKEPT,
    )


@pytest.mark.parametrize("way", ["invoke", "stream", "stream messages", "ainvoke", "astream messages", "batch"])
def test_anthropic(way: str) -> None:
    """Its API has no ids, and its steps are the wire's all the same."""
    with serving(three_turns) as server, rt.trajectory() as own:
        agent = adder(record(anthropic(server)))
        WAYS[way](agent, question(), {})
    assert [record.json["messages"] for record in server.requests] == [step.messages for step in own.steps]
    assert [record.json["tools"] for record in server.requests] == [step.tools for step in own.steps]
    assert [(step.protocol, step.agent, step.status) for step in own.steps] == [
        ("anthropic.messages", "adder", "ok")
    ] * 3
    assert [run.step_id for run in own.tool_runs] == [own.steps[0].id, own.steps[1].id]
    assert [run.result for run in own.tool_runs] == ["1", "2"]


def test_record_gives_the_model_back_and_wraps_what_is_made_of_it() -> None:
    """Before or after: bindings, structured output, copies, sync and async."""
    with serving(lambda request: '{"x": 1}') as server, rt.trajectory() as own:
        plain = chat(server, recorded=False)
        bound = plain.bind_tools([add])
        assert record(plain, engine="vllm") is plain
        assert record(bound, engine="vllm") is bound
        bound.invoke("bound before")
        plain.with_structured_output(Point).invoke("parsed by the SDK")
        plain.with_structured_output(Point, method="json_mode").invoke("parsed by LangChain")
        plain.model_copy(update={"temperature": 0.5}).invoke("copied")
        asyncio.run(plain.bind(stop=["x"]).ainvoke("async"))
        assert_as_served(own.steps, server)
    assert len(own.steps) == 5


class Point(BaseModel):
    x: int


def test_models_that_share_connections_are_not_recorded() -> None:
    """LangChain gives all models of one address the same HTTP client."""
    with serving(echo) as server, rt.trajectory() as own:
        recorded = chat(server)
        other = ChatOpenAI(model="m", base_url=recorded.openai_api_base, api_key="none")  # type: ignore[arg-type]
        assert other.root_client._client is recorded.root_client._client
        recorded.invoke("mine")
        other.invoke("not mine")
    first, second = own.steps
    assert first.completion_token_ids is not None
    assert (said(second), second.token_issue and second.token_issue.code) == ("re: not mine", "not_on_wire")
    assert "return_token_ids" not in server.requests[1].json


def test_completion_models_are_recorded_too() -> None:
    with serving("four") as server, rt.trajectory() as own:
        llm = record(OpenAI(model="m", base_url=server.base_url, api_key="none"), engine="vllm")  # type: ignore[arg-type]
        assert llm.invoke("2 + 2 =") == "four"
    (step,) = own.steps
    assert (step.protocol, step.metadata and step.metadata["framework"]) == ("openai.completions", "langchain")
    assert step.completion_token_ids is not None


def text_model(server: ScriptedServer, **more: Any) -> OpenAI:
    llm = OpenAI(
        model="m",
        base_url=server.base_url,
        api_key="none",  # type: ignore[arg-type]
        max_retries=0,
        default_headers=UNKEPT,
        **more,
    )
    return record(llm, engine="vllm")


def echo_prompt(request: Any, choice: int) -> str:
    return f"re: {request['prompt'][choice // request['n']]}"


TEXT_WAYS: dict[str, Any] = {
    "batch": lambda llm, prompts, config: llm.batch(prompts, config),
    "abatch": lambda llm, prompts, config: asyncio.run(llm.abatch(prompts, config)),
    "invoke": lambda llm, prompts, config: [llm.invoke(prompt, config) for prompt in prompts],
    "ainvoke": lambda llm, prompts, config: asyncio.run(_one_by_one(llm, prompts, config)),
    "gathered": lambda llm, prompts, config: asyncio.run(_gathered(llm, prompts, config)),
}


async def _one_by_one(llm: Any, prompts: list[str], config: Any) -> None:
    for prompt in prompts:
        await llm.ainvoke(prompt, config)


async def _gathered(llm: Any, prompts: list[str], config: Any) -> None:
    await asyncio.gather(*(llm.ainvoke(prompt, config) for prompt in prompts))


@pytest.mark.parametrize("is_own", [False, True], ids=["inside a trajectory", "alone"])
@pytest.mark.parametrize("settings", [{}, {"batch_size": 2, "n": 2, "best_of": 2}], ids=["one request", "several"])
@pytest.mark.parametrize("way", TEXT_WAYS)
def test_prompts_of_completion_models(way: str, settings: Any, is_own: bool, tmp_path: Path) -> None:
    """Several prompts may be one request: each answer is one step, of the run of its prompt."""
    prompts = ["one", "two", "three", "four", "five"]
    orphans = len(rt.orphans())
    with serving(echo_prompt) as server, rt.recording(tmp_path / "runs.jsonl"):
        llm = text_model(server, **settings)
        if is_own:
            TEXT_WAYS[way](llm, prompts, {"callbacks": [RolloutCallbackHandler()]})
        else:
            with rt.trajectory():
                TEXT_WAYS[way](llm, prompts, None)
    trajectories = list(rt.read(tmp_path / "runs.jsonl"))
    assert len(trajectories) == (5 if is_own and "batch" not in way else 1)
    steps = [step for one in trajectories for step in one.steps]
    assert len(rt.orphans()) == orphans
    choices = settings.get("n", 1)
    assert sorted((step.messages, said(step)) for step in steps) == sorted(
        ([prompt], f"re: {prompt}") for prompt in prompts for _ in range(choices)
    )
    assert [step.status for step in steps] == ["ok"] * 5 * choices
    assert all(step.completion_token_ids is not None for step in steps)
    by_run: dict[Any, set[str]] = {}
    for step in steps:
        assert step.metadata is not None
        by_run.setdefault(step.metadata["run_id"], set()).add(said(step))
    assert sorted(by_run.values(), key=min) == [{f"re: {prompt}"} for prompt in sorted(prompts)]


def test_a_batch_of_prompts_that_fails_has_the_steps_of_its_requests() -> None:
    def script(request: Any, record: Any) -> Any:
        return "fine" if record.index == 0 else Fault(status=500)

    with serving(script) as server, rt.trajectory() as own:
        with pytest.raises(Exception, match="500"):
            text_model(server, batch_size=2).batch(["one", "two", "three", "four", "five"])
    assert [(step.status, step.messages) for step in own.steps] == [
        ("ok", ["one"]), ("ok", ["two"]), ("error", ["three", "four"]),
    ]  # fmt: skip


def test_what_cannot_be_recorded_is_refused() -> None:
    with pytest.raises(TypeError, match="got GenericFakeChatModel"):
        record(GenericFakeChatModel(messages=iter([])))
    with ScriptedServer("x") as server, pytest.raises(ValueError, match="Anthropic's API, which sends no token ids"):
        record(anthropic(server), engine="vllm")


@pytest.mark.parametrize("way", ["generate", "agenerate", "batch", "abatch", "threads"])
def test_batches(way: str) -> None:
    """The prompts of a batch are all told at once; each call is its own run's."""
    prompts: Any = [[HumanMessage(f"q{number}")] for number in range(4)]
    with serving(echo) as server, rt.trajectory() as own:
        llm = chat(server)
        if way == "generate":
            llm.generate(prompts)
        elif way == "agenerate":
            asyncio.run(llm.agenerate(prompts))
        elif way == "batch":
            llm.batch(prompts, config={"max_concurrency": 1})
        elif way == "abatch":
            asyncio.run(llm.abatch(prompts))
        else:
            llm.batch(prompts)
    assert sorted(said(step) for step in own.steps) == [f"re: q{number}" for number in range(4)]
    assert len({step.metadata["run_id"] for step in own.steps if step.metadata}) == len(server.requests) == 4


@pytest.mark.parametrize("is_async", [False, True])
def test_a_batch_with_nothing_around_is_one_trajectory(is_async: bool, tmp_path: Path) -> None:
    handlers: Any = [RolloutCallbackHandler()]
    prompts: Any = [[HumanMessage(f"q{number}")] for number in range(3)]
    with serving(echo) as server, rt.recording(tmp_path / "runs.jsonl"):
        llm = chat(server)
        if is_async:
            asyncio.run(llm.agenerate(prompts, callbacks=handlers))
        else:
            llm.generate(prompts, callbacks=handlers)
        llm.batch(["a", "b"], config={"callbacks": handlers})
    assert [len(own.steps) for own in rt.read(tmp_path / "runs.jsonl")] == [3, 1, 1]
    assert not runs._runs


def test_several_choices() -> None:
    with serving(lambda request, choice: f"choice {choice}") as server, rt.trajectory() as own:
        chat(server, n=3).invoke("Hi")
    assert [(step.choice, said(step)) for step in own.steps] == [(n, f"choice {n}") for n in range(3)]
    assert len({step.call_id for step in own.steps}) == 1


@pytest.mark.sees("cached", "LangChain's cache of chat models")
@pytest.mark.parametrize("seen", [True, False], ids=["on the wire", "unseen"])
@pytest.mark.parametrize("is_async", [False, True])
def test_cached_answers(seen: bool, is_async: bool) -> None:
    """LangChain's cache answers without a call; a batch of a cached and an uncached prompt has one of each."""
    with serving(echo) as server, rt.trajectory() as own:
        llm = chat(server, recorded=seen, cache=InMemoryCache())
        if is_async:
            asyncio.run(_twice(llm))
        else:
            llm.invoke("one")
            llm.invoke("one")
            llm.generate([[HumanMessage("one")], [HumanMessage("two")]])
    assert len(server.requests) == 2
    assert sorted((step.status, said(step)) for step in own.steps) == [
        ("cached", "re: one"), ("cached", "re: one"), ("ok", "re: one"), ("ok", "re: two"),
    ]  # fmt: skip
    for step in own.steps:
        code = step.token_issue and step.token_issue.code
        assert code == ("cached" if step.status == "cached" else None if seen else "not_on_wire")
    assert sum(step.completion_token_ids is not None for step in own.steps) == (2 if seen else 0)


async def _twice(llm: ChatOpenAI) -> None:
    await llm.ainvoke("one")
    await llm.ainvoke("one")
    await llm.agenerate([[HumanMessage("one")], [HumanMessage("two")]])


@pytest.mark.sees("other models")
@pytest.mark.parametrize("way", ["invoke", "stream"])
def test_fake_models_are_recorded_as_langchain_tells_them(way: str) -> None:
    call = {"name": "add", "args": {"a": 1, "b": 2}, "id": "call_1", "type": "tool_call"}
    messages: Any = ["Hello there", AIMessage("Let me see", tool_calls=[call])]
    model = GenericFakeChatModel(messages=iter(messages))
    with rt.trajectory() as own:
        for prompt in ([("system", "Be brief"), ("user", "Hi")], [("user", "1 + 2?")]):
            result = model.stream(prompt) if way == "stream" else [model.invoke(prompt)]
            assert list(result)
    first, second = own.steps
    assert first.messages == [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hi"}]
    assert (said(first), first.status, first.protocol) == ("Hello there", "ok", None)
    assert first.completion_token_ids is None
    assert [step.token_issue and step.token_issue.code for step in own.steps] == ["not_on_wire"] * 2
    if way == "invoke":
        assert second.completion is not None
        (asked,) = second.completion.tool_calls
        assert (asked.id, asked.name, asked.arguments) == ("call_1", "add", '{"a": 1, "b": 2}')
    assert len(own.sequences()) == 0


def test_text_models_without_a_wire_are_recorded() -> None:
    with rt.trajectory() as own:
        assert FakeListLLM(responses=["four"]).invoke("2 + 2 =") == "four"
        FakeMessagesListChatModel(responses=[AIMessage("five")]).invoke("2 + 3 =")
    assert [(step.messages, said(step), step.status) for step in own.steps] == [
        ([{"role": "user", "content": "2 + 2 ="}], "four", "ok"),
        ([{"role": "user", "content": "2 + 3 ="}], "five", "ok"),
    ]


def test_usage_and_ending_of_unseen_calls() -> None:
    """An unrecorded model's steps have what its answers say."""
    contents = []
    for recorded in (True, False):
        with serving(three_turns) as server, rt.trajectory() as own:
            adder(chat(server, recorded=recorded, engine=None)).invoke(question())
        contents.append([content_of(step) for step in own.steps])
    for seen, told in zip(*contents, strict=True):
        for name in ("agent", "model", "response_model", "tools", "finish_reason", "status"):
            assert told[name] == seen[name], name
        for one, other in zip(seen["messages"], told["messages"], strict=True):
            assert {"role": other["role"], "content": other["content"] or None} == {
                "role": one["role"],
                "content": one["content"],
            }
            assert other.get("tool_calls") == one.get("tool_calls")
        assert told["usage"] is not None
        assert (told["usage"].input, told["usage"].output) == (seen["usage"].input, seen["usage"].output)
        assert told["completion"].content == seen["completion"].content
        asked = [[(call.name, call.arguments) for call in step["completion"].tool_calls] for step in (seen, told)]
        assert asked[0] == asked[1]


def test_models_that_break_the_rules_are_recorded() -> None:
    """A stream of chunks without ids, and a message of no role that chat knows."""

    class Odd(GenericFakeChatModel):
        def _stream(self, *args: Any, **kwargs: Any) -> Any:
            yield ChatGenerationChunk(message=AIMessageChunk(content=[{"type": "odd", "odd": 1}]))

    with rt.trajectory() as own:
        list(Odd(messages=iter([])).stream([HumanMessage([{"type": "odd", "odd": 1}])]))
    (step,) = own.steps
    assert (step.status, said(step)) == ("ok", [{"type": "odd", "odd": 1}])
    assert step.messages is not None
