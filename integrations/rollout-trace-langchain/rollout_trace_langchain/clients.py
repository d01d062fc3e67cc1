"""``record(llm)``: wraps the SDK clients inside a LangChain model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from langchain_core.language_models import BaseLanguageModel
from langchain_core.runnables import Runnable, RunnableWithFallbacks
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.configurable import RunnableConfigurableAlternatives, RunnableConfigurableFields

# The import registers the handler: without it a recorded model's steps would have no runs, agents or tools.
import rollout_trace_langchain.handler  # noqa: F401
from rollout_trace.integration import Engine, check_engine, client_kind, wrap_anthropic, wrap_openai

M = TypeVar("M")

_CLIENT_ATTRIBUTES = ("root_client", "root_async_client", "_client", "_async_client", "client", "async_client")
"""Attributes in which models of langchain-openai and langchain-anthropic keep SDK clients, or resources of them."""


def record(
    llm: M, *, engine: str | Engine | None = None, keep_bytes: bool = False, max_call_bytes: int = 64 * 1024 * 1024
) -> M:
    """Records the calls of a model by wrapping its SDK clients, sync and async, in place. Returns the same object.

    Whatever is made from the model (``bind_tools``, ``with_structured_output``, an agent), before or after, is recorded
    too. Other models are not, even if they share its HTTP connections. If the model stands for several models
    (``with_fallbacks``, ``configurable_alternatives``), either all of them are recorded or none.

    Args:
        llm: ``ChatOpenAI``, ``ChatAnthropic``, or a model built on one of their SDKs in the same way
            (``AzureChatOpenAI``, ``OpenAI``, ...); also bound (``bind_tools``), with fallbacks, alternatives or
            configurable fields.
        engine: the server behind it (``vllm``, ``sglang``, ...): its requests then ask for token ids and logprobs, see
            ``rollout_trace.wrap_openai``. Must be None for a model of Anthropic's SDK; of several models, it applies to
            those of OpenAI's SDK. If they have different engines, record each model before combining them. An
            ``rollout_trace.Engine`` asks for more than ids and logprobs.
        keep_bytes: keep request and response bodies on the steps.
        max_call_bytes: limit on the bytes kept of one request and of one response, see ``rollout_trace.wrap_openai``.

    Recording again only changes the settings.

    Raises:
        TypeError: ``llm``, or a model it stands for, has no client of the openai or anthropic SDK, or makes a new
            client for each call, which could not be recorded.
        ValueError: the engine is unknown, the model's API has no token ids, or ``max_call_bytes`` is below 1.
    """
    found = [(type(model).__name__, sdk, client) for model in _models(llm, "") for sdk, client in _clients(model)]
    if engine is not None and all(sdk != "openai" for _, sdk, _ in found):
        raise ValueError(
            f"engine={engine!r}: {found[0][0]} speaks Anthropic's API, which sends no token ids. Leave engine= out."
        )
    for _, sdk, client in found:
        if sdk == "openai":
            wrap_openai(client, engine=check_engine(engine), keep_bytes=keep_bytes, max_call_bytes=max_call_bytes)
        else:
            wrap_anthropic(client, keep_bytes=keep_bytes, max_call_bytes=max_call_bytes)
    return llm


def _models(llm: Any, place: str) -> Iterator[Any]:
    """The models that a call of ``llm`` may reach, each with a client. ``place``: its position, for error messages."""
    if isinstance(llm, RunnableWithFallbacks):
        yield from _models(llm.runnable, place)
        for number, fallback in enumerate(llm.fallbacks):
            yield from _models(fallback, f" as fallbacks[{number}]{place}")
    elif isinstance(llm, RunnableConfigurableAlternatives):
        yield from _models(llm.default, place)
        for name, alternative in llm.alternatives.items():
            yield from _models(alternative, f" as alternative {str(name)!r}{place}")
    elif isinstance(llm, RunnableConfigurableFields):
        models = list(_models(llm.default, place))
        _check_fields(llm.default, models, place)
        yield from models
    elif isinstance(llm, RunnableBindingBase):
        yield from _models(llm.bound, place)
    else:
        _check_model(llm, place)
        yield llm


def _check_model(model: Any, place: str) -> None:
    made = list(_clients(model))
    # Looked up twice: a model that is configured for each call is made anew at each access, with new clients.
    if made and [id(client) for _, client in made] != [id(client) for _, client in _clients(model)]:
        raise TypeError(
            f"record() got {type(model).__name__}{place}, which makes a new model for every call: a recorded client "
            "would not be the one that is called. Give init_chat_model() a fixed model, without configurable fields, "
            "or choose among recorded models with configurable_alternatives()."
        )
    if not made and isinstance(model, Runnable) and not isinstance(model, BaseLanguageModel):
        raise TypeError(
            f"record() takes a model, got {type(model).__name__}{place}, which may hold several. Call record(llm) on "
            "each of them. Runs are recorded inside `with rt.trajectory()`; elsewhere, invoke it with "
            'config={"callbacks": [RolloutCallbackHandler()]}. rt.instrument(engine=..., hooks=True) records every '
            "model and every run of the process."
        )
    if not made:
        raise TypeError(
            "record() needs a model with a client of the openai or anthropic SDK, such as ChatOpenAI or "
            f"ChatAnthropic, got {type(model).__name__}{place}. For other models, RolloutCallbackHandler and `with "
            "rt.trajectory()` record what LangChain reports, without token ids. Record each of several models "
            "separately."
        )


def _check_fields(configured: Any, models: list[Any], place: str) -> None:
    """Raises if configuring a field makes a new client.

    A call that configures fields is made on a new object with the other fields unchanged; the clients must be among
    these.
    """
    fields = type(configured).model_fields
    new = type(configured)(**{name: value for name, value in configured.__dict__.items() if name in fields})
    kept = {id(client) for model in models for _, client in _clients(model)}
    if any(id(client) not in kept for model in _models(new, place) for _, client in _clients(model)):
        raise TypeError(
            f"record() got {type(configured).__name__}{place} with configurable_fields(): a call that configures it "
            "makes a new client, which would not be recorded. Choose among recorded models with "
            "configurable_alternatives(), or bind() what changes."
        )


def _clients(model: Any) -> Iterator[tuple[str, Any]]:
    seen: set[int] = set()
    for attribute in _CLIENT_ATTRIBUTES:
        value = getattr(model, attribute, None)
        for candidate in (value, getattr(value, "_client", None)):
            sdk = _sdk(candidate)
            if sdk is not None:
                if id(candidate) not in seen:
                    seen.add(id(candidate))
                    yield sdk, candidate
                break


def _sdk(candidate: Any) -> str | None:
    if client_kind(candidate, "openai") is not None:
        return "openai"
    return "anthropic" if client_kind(candidate, "anthropic") is not None else None
