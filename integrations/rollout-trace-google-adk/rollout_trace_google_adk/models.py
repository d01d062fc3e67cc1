"""Calls of ADK's models, and the clients inside these."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse

from rollout_trace.integration import (
    ModelFrame,
    active,
    guarded,
    litellm_client,
    litellm_route,
    record_client,
    record_litellm_client,
)
from rollout_trace_google_adk import content
from rollout_trace_google_adk.runs import enclosing_run, run_inside
from rollout_trace_google_adk.settings import Settings

_MARK = "__rollout_trace__"

_CLIENTS = ("api_client", "_openai_client", "_anthropic_client")
"""Attributes of ADK's models that hold the client of an SDK: of Gemini, OpenAI's and Anthropic's models."""


def record_models() -> None:
    """Wraps ``generate_content_async`` of all classes of models, also of those that are imported or defined later.

    Not of the objects that agents use alone: summarizers have models of their own, and agents and tools of a user may
    call one directly.
    """
    base: Any = BaseLlm.__pydantic_init_subclass__.__func__  # type: ignore[attr-defined]
    if hasattr(base, _MARK):
        return

    @functools.wraps(base)
    def init_subclass(cls: Any, **kwargs: Any) -> None:
        base(cls, **kwargs)
        _record_class(cls)

    _wrap_method(BaseLlm, "__pydantic_init_subclass__", init_subclass, classmethod)
    known: list[Any] = [BaseLlm]
    while known:
        kind = known.pop()
        _record_class(kind)
        known.extend(kind.__subclasses__())


@guarded
def _record_class(kind: Any) -> None:
    base = kind.__dict__.get("generate_content_async")
    if inspect.isfunction(base) and not hasattr(base, _MARK):
        _wrap_method(kind, "generate_content_async", _recorded_answer(base))


def _wrap_method(kind: Any, name: str, method: Any, descriptor: Any = lambda function: function) -> None:
    setattr(method, _MARK, True)
    setattr(kind, name, descriptor(method))


def _recorded_answer(base: Any) -> Any:
    @functools.wraps(base)
    async def generate_content_async(
        self: Any, llm_request: LlmRequest, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[LlmResponse, None]:
        call = _begin_call(self, llm_request)
        responses = _closable(base(self, llm_request, *args, **kwargs))
        if call is not None:
            responses = run_inside(call.frame, responses, call.on_response, call.end)
        async with aclosing(responses):
            async for response in responses:
                yield response

    return generate_content_async


def _closable(responses: Any) -> AsyncGenerator[LlmResponse, None]:
    """A generator of the responses: ADK takes any async iterator from a model."""

    async def each() -> AsyncGenerator[LlmResponse, None]:
        async for response in responses:
            yield response

    return responses if isinstance(responses, AsyncGenerator) else each()


@guarded
def _begin_call(model: Any, request: LlmRequest) -> ModelCall | None:
    """Begins a model call; None outside of every recorded run, and inside another call: of a model in a model."""
    run = enclosing_run()
    if run is None:
        return None
    _record_clients(model, run.settings)
    around = active()
    if isinstance(around, ModelFrame):
        return None
    call = ModelCall(model, request)
    if around is run:
        # Not a call of a tool: the tool calls of an answer are answered by the agent.
        run.latest_call = call.frame
    return call


class ModelCall:
    """One call of a model: one step, however many responses ADK makes of its stream."""

    def __init__(self, model: BaseLlm, request: LlmRequest) -> None:
        self.frame = ModelFrame("google-adk")
        self._model = model
        self._request = request
        self._responses: list[LlmResponse] = []
        self._partial: list[LlmResponse] = []

    @guarded
    def on_response(self, response: LlmResponse) -> None:
        """Keeps a response as long as no bytes are seen. Whole ones repeat what the partial ones before them say."""
        if not self.frame.calls:
            (self._partial if response.partial else self._responses).append(response)

    @guarded
    def end(self, error: BaseException | None) -> None:
        """Ends the frame; if no bytes were seen, with the request and the answer from ADK's objects."""
        frame = self.frame
        if self._responses and isinstance(error, GeneratorExit):
            # The answer had arrived whole.
            error = None
        try:
            if not frame.calls:
                frame.tell(**content.request_fields(self._request, self._model.model))
                answer = self._responses or self._partial
                if answer:
                    frame.answered(content.answer_fields(answer))
        finally:
            frame.end(error)


@guarded
def add_cached_call(request: LlmRequest, response: LlmResponse) -> None:
    """Adds a ``cached`` step for an answer that a callback gave in the model's place."""
    run = enclosing_run()
    if run is None:
        return
    frame = ModelFrame("google-adk")
    run.latest_call = frame
    frame.answered({**content.request_fields(request), **content.answer_fields([response])}, cached=True)
    frame.end()


def _record_clients(model: Any, settings: Settings) -> None:
    """Makes the clients inside a model record."""
    if getattr(model, "llm_client", None) is not None:
        _record_litellm()
    for name in _CLIENTS:
        if not hasattr(type(model), name):
            continue
        client = None
        # Without an API key it raises, as it will when the model uses it: not a failure of ours.
        with contextlib.suppress(Exception):
            client = getattr(model, name)
        record_client(client, engine=settings.engine, keep_bytes=settings.keep_bytes)


def _record_litellm() -> None:
    """Makes ADK's own class of ``LiteLlm.llm_client`` pass a recording client on; a user's class stays as it is."""
    from google.adk.models.lite_llm import LiteLLMClient

    base: Any = LiteLLMClient.acompletion
    if hasattr(base, _MARK):
        return

    @functools.wraps(base)
    async def acompletion(self: Any, model: Any, messages: Any, tools: Any, **kwargs: Any) -> Any:
        client = _client_for(model, kwargs) if type(self) is LiteLLMClient else None
        if client is not None:
            kwargs["client"] = client
        return await base(self, model, messages, tools, **kwargs)

    _wrap_method(LiteLLMClient, "acompletion", acompletion)


@guarded
def _client_for(model: str, arguments: dict[str, Any]) -> Any | None:
    """A recording client for a call of LiteLLM inside a recorded run; None if it has one, or can have none."""
    run = enclosing_run()
    if run is None:
        return None
    engine, keep_bytes = run.settings.engine, run.settings.keep_bytes
    given = arguments.get("client")
    if given is None:
        return litellm_client(model, arguments, engine=engine, keep_bytes=keep_bytes)
    record_litellm_client(given, litellm_route(model, arguments), engine=engine, keep_bytes=keep_bytes)
    return None
