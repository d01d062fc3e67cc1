"""The clients that a LangChain model calls its provider with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from langchain_core.runnables import RunnableWithFallbacks
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.configurable import RunnableConfigurableAlternatives, RunnableConfigurableFields

# Also for `record` alone: who records a client means what its framework does with it, which the handler sees.
import rollout_trace_langchain.handler  # noqa: F401
from rollout_trace.integration import check_engine, client_kind, wrap_anthropic, wrap_openai

M = TypeVar("M")

_PLACES = ("root_client", "root_async_client", "_client", "_async_client", "client", "async_client")
"""Where models of langchain-openai and langchain-anthropic keep clients of the SDKs, or resources of such clients."""


def record(llm: M, *, engine: str | None = None, keep_bytes: bool = False) -> M:
    """Records the calls of a model: its SDK clients, sync and async, are wrapped in place. Gives the same object back.

    What is made of the model (``bind_tools``, ``with_structured_output``, an agent), before or after, is recorded too.
    Other models are left alone, also those that share the HTTP connections of this one. Of a model that stands for
    several (``with_fallbacks``, ``configurable_alternatives``) each one is recorded, or none.

    Args:
        llm: ``ChatOpenAI``, ``ChatAnthropic``, or a model built on one of their SDKs in the same way
            (``AzureChatOpenAI``, ``OpenAI``, ...); also bound (``bind_tools``), with fallbacks, alternatives or
            configurable fields.
        engine: the server behind it (``vllm``, ``sglang``, ...): asks it for token ids and logprobs. See
            ``rollout_trace.wrap_openai``. Of a model that is not OpenAI's it must be None; of several it is for those
            that are. Where they have different engines, record each alone before they are put together.
        keep_bytes: keep request and response bodies on the steps.

    Recording again only changes the settings.

    Raises:
        TypeError: no client of the openai or anthropic SDK was found in it, or in one of the models that it stands for;
            or it makes a new client for a call, which could not be recorded.
        ValueError: the engine is not known, or the model's API cannot be asked for ids.
    """
    found = [(type(model).__name__, sdk, client) for model in _models(llm, "") for sdk, client in _clients(model)]
    if engine is not None and all(sdk != "openai" for _, sdk, _ in found):
        raise ValueError(f"engine={engine!r}: {found[0][0]} speaks Anthropic's API, which has no ids.")
    for _, sdk, client in found:
        if sdk == "openai":
            wrap_openai(client, engine=check_engine(engine), keep_bytes=keep_bytes)
        else:
            wrap_anthropic(client, keep_bytes=keep_bytes)
    return llm


def _models(llm: Any, place: str) -> Iterator[Any]:
    """The models that may be called in the place of one, each with a client; ``place`` says where it was found."""
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
    if made and [id(client) for _, client in made] != [id(client) for _, client in _clients(model)]:
        raise TypeError(
            f"record() got {type(model).__name__}{place}, which makes a new model for every call: a recorded client "
            "would not be the one that is called. Give init_chat_model() a fixed model, without configurable fields, "
            "or choose among recorded models with configurable_alternatives()."
        )
    if not made:
        raise TypeError(
            f"record() needs a model with a client of the openai or anthropic SDK, such as ChatOpenAI or ChatAnthropic,"
            f" got {type(model).__name__}{place}. Calls of other models are recorded as LangChain tells them, without "
            "token ids, by RolloutCallbackHandler or inside `with rt.trajectory()`; what can be recorded of several "
            "models, record one by one."
        )


def _check_fields(configured: Any, models: list[Any], place: str) -> None:
    """A call that configures fields is made on a new object with the same other fields: they must hold the clients."""
    fields = type(configured).model_fields
    anew = type(configured)(**{name: value for name, value in configured.__dict__.items() if name in fields})
    kept = {id(client) for model in models for _, client in _clients(model)}
    if any(id(client) not in kept for model in _models(anew, place) for _, client in _clients(model)):
        raise TypeError(
            f"record() got {type(configured).__name__}{place} with configurable_fields(): a call that configures it "
            "makes a new client, which would not be recorded. Choose among recorded models with "
            "configurable_alternatives(), or bind() what changes."
        )


def _clients(model: Any) -> Iterator[tuple[str, Any]]:
    seen: set[int] = set()
    for place in _PLACES:
        held = getattr(model, place, None)
        for candidate in (held, getattr(held, "_client", None)):
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
