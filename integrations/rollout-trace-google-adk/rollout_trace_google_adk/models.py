"""Recording subclasses of models' own classes, swapped in on the model objects, and the clients inside them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse

from rollout_trace.integration import (
    ClassSwap,
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

# With two underscores before it and after: pydantic takes other names with an underscore for private attributes.
_models: ClassSwap[bool] = ClassSwap("__rollout_trace_google_adk__", is_pickled=True)
_litellm: ClassSwap[bool] = ClassSwap("__rollout_trace_google_adk__", is_pickled=True)

_CLIENTS = ("api_client", "_openai_client", "_anthropic_client")
"""Attributes of ADK's models that hold the client of an SDK: of Gemini, OpenAI's and Anthropic's models."""


@guarded
def record_model(model: Any) -> None:
    """Makes a model record inside recorded runs. May be called repeatedly.

    A model that cannot have another class is left unchanged: its calls are recorded if its client is one that can be.
    """
    if isinstance(model, BaseLlm) and _models.settings_of(model) is None:
        with contextlib.suppress(TypeError):
            _models.put_on(model, True, _model_methods)


def _model_methods(base: Any, _: bool) -> dict[str, Any]:
    @functools.wraps(base.generate_content_async)
    async def generate_content_async(
        self: Any, llm_request: LlmRequest, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[LlmResponse, None]:
        call = _begin_call(self, llm_request)
        responses = base.generate_content_async(self, llm_request, *args, **kwargs)
        if call is not None:
            responses = run_inside(call.frame, responses, call.on_response, call.end)
        async with aclosing(responses):
            async for response in responses:
                yield response

    return {"generate_content_async": generate_content_async}


@guarded
def _begin_call(model: Any, request: LlmRequest) -> ModelCall | None:
    """Begins a model call; None outside of every recorded run, and inside another call, as of a fallback model."""
    run = enclosing_run()
    if run is None or isinstance(active(), ModelFrame):
        return None
    _record_clients(model, run.settings)
    call = ModelCall(model, request)
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
    if enclosing_run() is None:
        return
    frame = ModelFrame("google-adk")
    frame.answered({**content.request_fields(request), **content.answer_fields([response])}, cached=True)
    frame.end()


def _record_clients(model: Any, settings: Settings) -> None:
    """Makes the clients inside a model record."""
    for inner in getattr(model, "models", None) or ():  # of a `FallbackModel`
        if isinstance(inner, BaseLlm):
            _record_clients(inner, settings)
    client = getattr(model, "llm_client", None)
    if client is not None:
        _record_litellm(client)
    for name in _CLIENTS:
        if hasattr(type(model), name):
            # Without an API key it raises, as it will when the model uses it: not a failure of ours.
            with contextlib.suppress(Exception):
                record_client(getattr(model, name), engine=settings.engine, keep_bytes=settings.keep_bytes)


def _record_litellm(client: Any) -> None:
    """Makes ADK's own class of ``LiteLlm.llm_client`` pass a recording client on; a user's class stays as it is."""
    from google.adk.models.lite_llm import LiteLLMClient

    if type(client) is LiteLLMClient:
        _litellm.put_on(client, True, _litellm_methods)


def _litellm_methods(base: Any, _: bool) -> dict[str, Any]:
    @functools.wraps(base.acompletion)
    async def acompletion(self: Any, model: Any, messages: Any, tools: Any, **kwargs: Any) -> Any:
        client = _client_for(model, kwargs)
        if client is not None:
            kwargs["client"] = client
        return await base.acompletion(self, model, messages, tools, **kwargs)

    return {"acompletion": acompletion}


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
