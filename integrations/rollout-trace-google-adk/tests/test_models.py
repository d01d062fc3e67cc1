"""The models of ADK: how each is recorded, and what is known of those whose bytes are not seen."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from google.adk.agents.run_config import RunConfig
from google.adk.models.base_llm import BaseLlm
from google.adk.models.google_llm import Gemini
from google.adk.models.lite_llm import LiteLlm, LiteLLMClient
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from openai import AsyncOpenAI
from oracle import Recorded, Served, assert_served, events_of

import rollout_trace as rt
from rollout_trace import Trajectory
from rollout_trace.testing import Fault, RequestRecord, ScriptedServer
from rollout_trace_google_adk import record

from .harness import SSE, add, adding, agent_of, gemini, litellm, run, runner_of

MODES = pytest.mark.parametrize("config", [RunConfig(), SSE], ids=["whole", "streamed"])
LOGPROBS = types.GenerateContentConfig(response_logprobs=True, logprobs=0)


async def recorded_run(agent: Any, *, engine: Any = "vllm", **options: Any) -> Trajectory:
    with rt.trajectory("task") as trajectory:
        await run(runner_of(agent, engine=engine), **options)
    if isinstance(agent.canonical_model, Gemini):
        await agent.canonical_model.api_client.aio.aclose()
    return trajectory


def google_ids(record: RequestRecord) -> tuple[list[int], list[float]]:
    """The ids and logprobs of an answer of Google's protocol."""
    found = [
        one
        for event in events_of(record)
        for candidate in event.get("candidates", ())
        for one in (candidate.get("logprobsResult") or {}).get("chosenCandidates", ())
    ]
    return [one["tokenId"] for one in found], [one["logProbability"] for one in found]


@MODES
def test_gemini(recorded: Recorded, config: RunConfig) -> None:
    with ScriptedServer(adding(2)) as server:
        agent = agent_of(gemini(server), generate_content_config=LOGPROBS)
        trajectory = asyncio.run(recorded_run(agent, config=config))
        server.wait_idle()
        assert len(server.requests) == len(trajectory.steps) == 3
        for record, step in zip(server.requests, trajectory.steps, strict=True):
            ids, logprobs = google_ids(record)
            assert (step.protocol, step.status, step.metadata) == (
                "google.generate_content",
                "ok",
                {"framework": "google-adk"},
            )
            assert step.completion_token_ids is not None
            assert step.completion_token_ids.tolist() == ids
            assert step.logprobs is not None
            assert step.logprobs.tolist() == pytest.approx(logprobs)
            assert step.messages is not None
            assert list(step.messages)[-len(record.json["contents"]) :] == record.json["contents"]
    assert [(one.name, one.result) for one in trajectory.tool_runs] == [("add", 2), ("add", 3)]
    # Google's calls have no ids; ADK makes some, and takes them out of its requests.
    assert [one.step_id for one in trajectory.tool_runs] == [step.id for step in trajectory.steps[:2]]
    recorded.keep(trajectory)


def test_gemini_by_its_name(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """ADK makes the model, and its client when it is first used."""
    with ScriptedServer(adding(1)) as server:
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", server.url)
        agent = agent_of("gemini-scripted", generate_content_config=LOGPROBS)
        trajectory = asyncio.run(recorded_run(agent))
        assert len(server.requests) == 2
        for record, step in zip(server.requests, trajectory.steps, strict=True):
            assert step.completion_token_ids is not None
            assert step.completion_token_ids.tolist() == google_ids(record)[0]
    recorded.keep(trajectory)


def test_gemini_without_a_key_fails_as_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    messages = []
    for is_recorded in (False, True):
        with pytest.raises(ValueError) as raised:
            asyncio.run(run(runner_of(agent_of(Gemini(model="gemini-scripted")), is_recorded=is_recorded)))
        messages.append(str(raised.value))
    assert messages[0] == messages[1]


@MODES
def test_a_client_that_the_user_gave_litellm(recorded: Recorded, config: RunConfig) -> None:
    async def main(server: ScriptedServer) -> Trajectory:
        async with AsyncOpenAI(base_url=server.base_url, api_key="none") as client:
            return await recorded_run(agent_of(LiteLlm("openai/scripted", client=client)), config=config)

    with ScriptedServer(adding(1)) as server:
        trajectory = asyncio.run(main(server))
        assert_served(server, trajectory.steps)
    recorded.keep(trajectory)


def test_a_client_that_the_user_wrapped_keeps_its_settings(recorded: Recorded) -> None:
    async def main(server: ScriptedServer) -> Trajectory:
        async with AsyncOpenAI(base_url=server.base_url, api_key="none") as client:
            rt.wrap_openai(client, engine="vllm")
            return await recorded_run(agent_of(LiteLlm("openai/scripted", client=client)), engine=None)

    with ScriptedServer(adding(1)) as server:
        trajectory = asyncio.run(main(server))
        assert_served(server, trajectory.steps)


def test_a_class_of_the_users_for_litellm_is_left_alone(recorded: Recorded) -> None:
    """It might not take another argument. What it answers is recorded from ADK's data."""

    class Mine(LiteLLMClient):
        async def acompletion(self, model: Any, messages: Any, tools: Any, **kwargs: Any) -> Any:
            assert "client" not in kwargs
            return await super().acompletion(model, messages, tools, **kwargs)

    with ScriptedServer(adding(1)) as server:
        model = litellm(server, llm_client=Mine())
        trajectory = asyncio.run(recorded_run(agent_of(model)))
        assert type(model.llm_client) is Mine
        assert len(server.requests) == 2
    assert [step.token_issue and step.token_issue.code for step in trajectory.steps] == ["not_on_wire"] * 2


@pytest.mark.parametrize("kind", ["OpenAILlm", "OpenAIResponsesLlm"])
@MODES
def test_models_of_openais_sdk(recorded: Recorded, kind: str, config: RunConfig) -> None:
    openai_models = pytest.importorskip("google.adk.integrations.openai")
    if not hasattr(openai_models, kind):
        pytest.skip(f"no {kind} in this release")

    async def main(server: ScriptedServer) -> Trajectory:
        async with AsyncOpenAI(base_url=server.base_url, api_key="none") as client:
            model = getattr(openai_models, kind)(model="scripted", client=client)
            return await recorded_run(agent_of(model), config=config)

    with ScriptedServer(adding(1)) as server:
        trajectory = asyncio.run(main(server))
        assert len(server.requests) == len(trajectory.steps) == 2
    protocol = "openai.responses" if kind == "OpenAIResponsesLlm" else "openai.chat"
    assert {(step.protocol, step.status) for step in trajectory.steps} == {(protocol, "ok")}
    if protocol == "openai.chat":
        assert_served(server, trajectory.steps)
    recorded.keep(trajectory)


class Parrot(BaseLlm):
    """A model without a client: it uses a tool, then says what it was asked."""

    def connect(self, llm_request: LlmRequest) -> Any:
        raise NotImplementedError

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=7, candidates_token_count=3)
        if not any(part.function_response for one in llm_request.contents for part in one.parts or ()):
            call = types.FunctionCall(id="call_1", name="add", args={"a": 1, "b": 2})
            parts = [types.Part(text="Adding.", thought=True), types.Part(function_call=call)]
        else:
            for piece in ("squ", "awk") if stream else ():
                yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=piece)]), partial=True)
            parts = [types.Part(text="squawk")]
        content = types.Content(role="model", parts=parts)
        yield LlmResponse(content=content, finish_reason=types.FinishReason.STOP, usage_metadata=usage, partial=False)


@pytest.mark.sees("other models")
@MODES
def test_a_model_whose_bytes_are_not_seen(recorded: Recorded, config: RunConfig) -> None:
    agent = agent_of(Parrot(model="parrot"), generate_content_config=types.GenerateContentConfig(temperature=0.5))
    trajectory = asyncio.run(recorded_run(agent, config=config))
    asks, says = trajectory.steps
    assert {step.token_issue and step.token_issue.code for step in trajectory.steps} == {"not_on_wire"}
    assert {step.status for step in trajectory.steps} == {"ok"}
    assert asks.completion is not None
    assert (asks.completion.reasoning, asks.completion.content) == ("Adding.", None)
    assert [(call.id, call.name, call.arguments) for call in asks.completion.tool_calls] == [
        ("call_1", "add", '{"a": 1, "b": 2}')
    ]
    assert says.completion is not None
    assert (says.completion.content, says.finish_reason, says.model) == ("squawk", "STOP", "parrot")
    assert says.usage is not None
    assert (says.usage.input, says.usage.output, says.usage.cache_read) == (7, 3, None)
    assert says.sampling == {"temperature": 0.5}
    assert says.tools is not None
    assert [tool["function"]["name"] for tool in says.tools] == ["add", "fail"]
    assert says.messages is not None
    assert [message["role"] for message in says.messages] == ["system", "user", "assistant", "tool"]
    assert says.messages[3] == {"role": "tool", "tool_call_id": "call_1", "content": '{"result": 3}'}
    assert trajectory.tool_runs[0].step_id == asks.id
    assert trajectory.sequences() == []
    recorded.keep(trajectory)


def test_a_model_that_raises(recorded: Recorded) -> None:
    class Broken(Parrot):
        async def generate_content_async(
            self, llm_request: LlmRequest, stream: bool = False
        ) -> AsyncGenerator[LlmResponse, None]:
            raise LookupError("no model")
            yield LlmResponse()

    with pytest.raises(LookupError, match="no model"):
        asyncio.run(run(runner_of(agent_of(Broken(model="broken")))))
    (trajectory,) = recorded.all()
    (step,) = trajectory.steps
    assert (step.status, step.error and step.error.type, step.model) == ("error", "LookupError", "broken")
    assert trajectory.status == "failed"


def test_pictures_and_other_parts(recorded: Recorded) -> None:
    picture = types.Part(inline_data=types.Blob(data=b"png", mime_type="image/png"))
    trajectory = asyncio.run(recorded_run(agent_of(Parrot(model="parrot")), message=picture))
    messages = trajectory.steps[0].messages
    assert messages is not None
    assert messages[1]["content"] == [{"type": "image_url", "image_url": {"url": "data:image/png;base64,cG5n"}}]
    recorded.keep(trajectory)


def test_instrument_beside_it_records_each_call_once(recorded: Recorded) -> None:
    for make in (litellm, lambda server: litellm(server, "hosted_vllm")):
        with ScriptedServer(adding(1)) as server, rt.instrument(engine="vllm"):
            trajectory = asyncio.run(recorded_run(agent_of(make(server))))
            assert_served(server, trajectory.steps)
        recorded.keep(trajectory)


def test_a_fallback_model(recorded: Recorded) -> None:
    fallback = pytest.importorskip("google.adk.models._fallback_model")

    def script(request: dict[str, Any], messages: list[Any]) -> Any:
        broken = Fault(status=429, body={"error": {"message": "busy"}})
        return broken if request["model"] == "busy" else adding(1)(request, messages)

    with ScriptedServer(script) as server:
        busy = LiteLlm("openai/busy", api_base=server.base_url, api_key="none", max_retries=0)
        model = fallback.FallbackModel(models=[busy, litellm(server)])
        trajectory = asyncio.run(recorded_run(agent_of(model)))
        server.wait_idle()
        served = [Served(record) for record in server.requests]
    assert [step.status for step in trajectory.steps] == ["ok" if one.status == 200 else "error" for one in served]
    for one, step in zip(served, trajectory.steps, strict=True):
        one.assert_is(step)
    assert "error" in [step.status for step in trajectory.steps]
    recorded.keep(trajectory)


def test_models_can_be_copied_and_pickled(recorded: Recorded) -> None:
    """They could be before."""
    with ScriptedServer(adding(0)) as server:
        agent = agent_of(litellm(server))
        asyncio.run(recorded_run(agent))
        again = [copy.copy(agent.model), copy.deepcopy(agent.model), pickle.loads(pickle.dumps(agent.model))]
        for model in again:
            trajectory = asyncio.run(recorded_run(agent_of(model)))
            server.wait_idle()
            Served(server.requests[-1]).assert_is(trajectory.steps[0])
        assert len(server.requests) == 4
        assert isinstance(agent.model, LiteLlm)
        left_out = {"llm_client"}  # Since 2.8 or so, ADK leaves it out itself.
        assert agent.model.model_dump(exclude=left_out) == litellm(server).model_dump(exclude=left_out)
        assert type(agent.model).__name__ == "LiteLlm"


def test_a_recorded_agent_can_be_copied(recorded: Recorded) -> None:
    with ScriptedServer(adding(1)) as server:
        model = litellm(server)
        agent, plain = record(agent_of(model, tools=[add]), engine="vllm"), agent_of(model, tools=[add])
        assert (repr(agent), agent.model_dump()) == (repr(plain), plain.model_dump())
        asyncio.run(run(runner_of(agent.clone({"name": "clone"}), is_recorded=False)))
        (trajectory,) = recorded.all()
        assert_served(server, trajectory.steps)
    assert trajectory.name == "clone"


def test_clients_are_closed_with_their_loop() -> None:
    from rollout_trace.integration import litellm as clients

    with ScriptedServer(adding(1)) as server:
        for route in ("openai", "hosted_vllm"):
            asyncio.run(recorded_run(agent_of(litellm(server, route))))
            assert clients._kept == {}


def test_runs_of_one_loop_share_a_client() -> None:
    from rollout_trace.integration import litellm as clients

    async def main(server: ScriptedServer) -> int:
        for _ in range(3):
            await recorded_run(agent_of(litellm(server)))
        return len(clients._kept)

    with ScriptedServer(adding(1)) as server:
        assert asyncio.run(main(server)) == 1
