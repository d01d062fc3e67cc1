"""What ``record()`` makes of models that stand for others: fallbacks, alternatives, configurable fields."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.chat_models import init_chat_model
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.runnables import ConfigurableField, RunnableLambda

import rollout_trace as rt
from rollout_trace.testing import Fault, ScriptedServer
from rollout_trace_langchain import record

from .agents import UNKEPT, add, adder, chat, question, serving
from .oracle import assert_as_served


def anthropic(server: ScriptedServer) -> ChatAnthropic:
    return ChatAnthropic(
        model="m",  # type: ignore[call-arg]
        base_url=server.url,
        api_key="none",  # type: ignore[arg-type]
        max_retries=0,
        default_headers=UNKEPT,
    )


def fails_first(request: Any, record: Any) -> Any:
    return Fault(status=500) if record.index == 0 else "Hi"


def fails_twice(request: Any, record: Any) -> Any:
    return Fault(status=500) if record.index < 2 else "Hi"


def test_every_fallback_is_recorded() -> None:
    with serving(fails_first) as server, rt.trajectory() as own:
        llm: Any = chat(server, recorded=False).with_fallbacks([chat(server, recorded=False)])
        assert record(llm, engine="vllm") is llm
        llm.invoke("Hi")
        assert_as_served(own.steps, server)
    assert [step.status for step in own.steps] == ["error", "ok"]


def test_an_engine_with_options_and_a_limit() -> None:
    """What is wished beside ids and logprobs is asked for; a call beyond the limit says so."""
    with ScriptedServer("Hi") as server, rt.trajectory() as own:
        llm = chat(server, recorded=False)
        record(llm, engine=rt.Engine("vllm", prompt_logprobs=0)).invoke("Hi")
        record(llm, engine="vllm", max_call_bytes=20).invoke("Hi")
        assert [record.json.get("prompt_logprobs") for record in server.requests] == [0, None]
    issues = [step.token_issue and step.token_issue.code for step in own.steps]
    assert issues == [None, "bytes_left_out"]
    with pytest.raises(ValueError, match="max_call_bytes=0"):
        record(llm, max_call_bytes=0)


def test_fallbacks_inside_others_are_recorded() -> None:
    """Of bound models, of retries, of fallbacks with fallbacks of their own."""
    with serving(fails_twice) as server, rt.trajectory() as own:
        plain = [chat(server, recorded=False) for _ in range(3)]
        last = plain[1].bind_tools([add]).with_fallbacks([plain[2]]).with_retry(stop_after_attempt=1)
        record(plain[0].bind_tools([add]).with_fallbacks([last]), engine="vllm").invoke("Hi")
        assert_as_served(own.steps, server)
    assert [step.status for step in own.steps] == ["error", "error", "ok"]


def test_a_fallback_of_another_provider_has_no_engine() -> None:
    """``engine`` is for those that speak its protocol."""
    with serving(fails_first) as server, rt.trajectory() as own:
        llm: Any = chat(server, recorded=False).with_fallbacks([anthropic(server)])
        record(llm, engine="vllm").invoke("Hi")
    assert [(step.protocol, step.status) for step in own.steps] == [
        ("openai.chat", "error"), ("anthropic.messages", "ok"),
    ]  # fmt: skip
    with serving("Hi") as server, pytest.raises(ValueError, match="Anthropic's API, which sends no token ids"):
        record(anthropic(server).with_fallbacks([anthropic(server)]), engine="vllm")


def test_a_fallback_that_cannot_be_recorded_is_refused() -> None:
    """And the others are not recorded then."""
    fake = GenericFakeChatModel(messages=iter([]))
    with serving("Hi") as server, rt.trajectory() as own:
        llm = chat(server, recorded=False)
        with pytest.raises(TypeError, match=r"got GenericFakeChatModel as fallbacks\[0\]\."):
            record(llm.with_fallbacks([fake]), engine="vllm")
        llm.invoke("Hi")
    assert [step.token_issue and step.token_issue.code for step in own.steps] == ["not_on_wire"]


def test_every_alternative_is_recorded() -> None:
    with serving("Hi") as server, rt.trajectory() as own:
        first, second = chat(server, recorded=False), chat(server, recorded=False, temperature=0.5)
        llm: Any = first.configurable_alternatives(ConfigurableField(id="which"), default_key="one", two=second)
        record(llm, engine="vllm")
        llm.invoke("Hi")
        llm.with_config(configurable={"which": "two"}).invoke("Hi")
        assert_as_served(own.steps, server)
    assert [step.sampling and step.sampling.get("temperature") for step in own.steps] == [None, 0.5]


def test_an_alternative_that_is_made_for_each_call_is_refused() -> None:
    with serving("Hi") as server:
        first = chat(server, recorded=False)
        llm: Any = first.configurable_alternatives(
            ConfigurableField(id="which"), default_key="one", two=lambda: chat(server, recorded=False)
        )
        with pytest.raises(TypeError, match="got function as alternative 'two'"):
            record(llm)


def test_a_configured_call_is_recorded() -> None:
    with serving("Hi") as server, rt.trajectory() as own:
        llm: Any = chat(server, recorded=False).configurable_fields(temperature=ConfigurableField(id="temperature"))
        record(llm, engine="vllm")
        llm.invoke("Hi")
        llm.invoke("Hi", config={"configurable": {"temperature": 0.25}})
        bound = chat(server, recorded=False).bind(stop=["x"]).configurable_fields(kwargs=ConfigurableField(id="kwargs"))
        record(bound, engine="vllm").invoke("Hi", config={"configurable": {"kwargs": {"temperature": 0.75}}})
        assert_as_served(own.steps, server)
    assert [step.sampling and step.sampling.get("temperature") for step in own.steps] == [None, 0.25, 0.75]


def test_fields_that_would_make_a_new_client_are_refused() -> None:
    """ChatAnthropic does not pass its clients on to the model that a configured call is made on."""
    with serving("Hi") as server:
        llm = anthropic(server).configurable_fields(temperature=ConfigurableField(id="temperature"))
        with pytest.raises(TypeError, match=r"ChatAnthropic with configurable_fields\(\)"):
            record(llm)


@pytest.mark.parametrize("is_bound", [False, True])
def test_a_model_that_is_made_for_each_call_is_refused(is_bound: bool) -> None:
    llm: Any = init_chat_model("gpt-5", model_provider="openai", configurable_fields=("temperature",), api_key="none")
    with pytest.raises(TypeError, match="_ConfigurableModel"):
        record(llm.bind_tools([add]) if is_bound else llm)


@pytest.mark.parametrize("kind", ["graph", "chain"])
def test_what_has_models_inside_is_told_what_to_do(kind: str) -> None:
    """Its models can be recorded one by one; its runs without a trajectory and a handler are calls on their own."""
    with serving("Hi") as server:
        llm = chat(server, recorded=False)
        whole: Any = adder(llm) if kind == "graph" else RunnableLambda(lambda text: text) | llm
        with pytest.raises(
            TypeError, match=r"takes a model, got .*record\(llm\) on each of them.*RolloutCallbackHandler"
        ):
            record(whole, engine="vllm")
        record(llm, engine="vllm")
        whole.invoke(question() if kind == "graph" else "Hi")
        assert_as_served(rt.orphans(), server)
