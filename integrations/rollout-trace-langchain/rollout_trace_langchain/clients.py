"""The clients that a LangChain model calls its provider with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from rollout_trace.clients.anthropic import wrap_anthropic
from rollout_trace.clients.common import client_kind
from rollout_trace.clients.openai import wrap_openai

M = TypeVar("M")

_PLACES = ("root_client", "root_async_client", "_client", "_async_client", "client", "async_client")
"""Where models of langchain-openai and langchain-anthropic keep clients of the SDKs, or resources of such clients."""


def record(llm: M, *, engine: str | None = None, keep_bytes: bool = False) -> M:
    """Records the calls of a model: its SDK clients, sync and async, are wrapped in place. Gives the same object back.

    What is made of the model (``bind_tools``, ``with_structured_output``, an agent), before or after, is recorded too.
    Other models are left alone, also those that share the HTTP connections of this one.

    Args:
        llm: ``ChatOpenAI``, ``ChatAnthropic``, or a model built on one of their SDKs in the same way
            (``AzureChatOpenAI``, ``OpenAI``, ...); also bound (``bind_tools``).
        engine: the server behind it (``vllm``, ``sglang``, ...): asks it for token ids and logprobs. See
            ``rollout_trace.wrap_openai``. Of a model that is not OpenAI's it must be None.
        keep_bytes: keep request and response bodies on the steps.

    Recording again only changes the settings.

    Raises:
        TypeError: no client of the openai or anthropic SDK was found in it.
        ValueError: the engine is not known, or the model's API cannot be asked for ids.
    """
    model: Any = llm
    # Bindings hold their model in `bound`.
    while hasattr(model, "bound"):
        model = model.bound
    clients = list(_clients(model))
    if not clients:
        raise TypeError(
            f"record() needs a model with a client of the openai or anthropic SDK, such as ChatOpenAI or ChatAnthropic,"
            f" got {type(model).__name__}. Calls of other models are recorded as LangChain tells them, without token "
            "ids, by RolloutCallbackHandler or inside `with rt.trajectory()`."
        )
    for sdk, client in clients:
        if sdk == "openai":
            wrap_openai(client, engine=engine, keep_bytes=keep_bytes)
        elif engine is not None:
            raise ValueError(f"engine={engine!r}: {type(model).__name__} speaks Anthropic's API, which has no ids.")
        else:
            wrap_anthropic(client, keep_bytes=keep_bytes)
    return llm


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
