"""Wraps the SDK clients inside Strands' model objects."""

from __future__ import annotations

import copy
import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rollout_trace.integration import (
    guarded,
    http_kind,
    is_left_to_process,
    litellm_client,
    litellm_route,
    record_client,
    record_litellm_client,
    wrap_httpx,
)
from rollout_trace_strands.models import plain_class, swap_class

if TYPE_CHECKING:
    from rollout_trace.integration import Engine, EngineName

_KINDS = {
    "AnthropicModel": "anthropic",
    "LiteLLMModel": "litellm",
    "LlamaCppModel": "llamacpp",
    "OpenAIModel": "openai",
}
"""Strands' model classes whose clients can be wrapped, and their modules in ``strands.models``."""


class Clients:
    """Wraps the clients of models, with the settings of one provider."""

    def __init__(self, engine: EngineName | Engine | None, keep_bytes: bool) -> None:
        self._engine = engine
        self._keep_bytes = keep_bytes

    def prepare(self, model: Any) -> tuple[Any, bool]:
        """Prepares a model for one call.

        Returns:
            The model to call, this one or a copy with a client of ours; whether the bytes of its calls are recorded.
        """
        if self.record_model(model):
            return model, True
        copied = self._with_own_client(model)
        # LiteLLM may reach a `hosted_vllm/` server by another HTTP client: an unseen answer there is not a cached one.
        return (model, False) if copied is None else (copied, _route(model) == "openai")

    @guarded
    def record_model(self, model: Any) -> bool:
        """Makes a model and its client record. May be called repeatedly.

        Returns:
            Whether the bytes of its calls are recorded; False if it has no client that can be wrapped.
        """
        swap_class(model, self)
        kind = _kind(model)
        if kind == "openai":
            return model._custom_client is None or self.record_client(model._custom_client)
        if kind == "anthropic":
            return self.record_client(model.client)
        if kind == "llamacpp":
            return self._record_http(model.client, "llama-server")
        if kind != "litellm":
            return False
        client = model.client_args.get("client")
        route = _route(model)
        is_recorded = record_litellm_client(client, route, engine=self._engine, keep_bytes=self._keep_bytes)
        return is_recorded and route == "openai"

    @guarded
    def _with_own_client(self, model: Any) -> Any | None:
        """A copy of a LiteLLM model with a recording client; None for a model that has one, or can have none.

        LiteLLM makes its clients itself and shares them in the process, so they cannot be wrapped.
        """
        if _kind(model) != "litellm" or plain_class(model).__module__ != "strands.models.litellm":
            # Not a user's subclass: what it keeps on the model during the call would be lost with the copy.
            return None
        arguments = model.client_args
        if arguments.get("client") is not None:
            return None
        config = model.get_config()
        of_call = {**arguments, **(config.get("params") or {})}
        client = litellm_client(str(config.get("model_id")), of_call, engine=self._engine, keep_bytes=self._keep_bytes)
        if client is None:
            return None
        copied = copy.copy(model)
        copied.client_args = {**arguments, "client": client}
        return copied

    @guarded
    def _record_http(self, client: Any, engine: EngineName) -> bool:
        """Wraps an httpx client; False if it is none.

        The kind of model determines the engine. Its capture fields are only added if the user passed an ``engine``.
        """
        if http_kind(client) is None:
            return False
        if is_left_to_process(self._engine):
            return True
        wrap_httpx(client, engine=self._named(engine), keep_bytes=self._keep_bytes)
        return True

    def _named(self, engine: EngineName) -> EngineName | Engine | None:
        """The engine of a model whose kind determines its name, with the provider's options; None without one."""
        if self._engine is None or isinstance(self._engine, str):
            return None if self._engine is None else engine
        return replace(self._engine, name=engine)

    @guarded
    def record_client(self, client: Any) -> bool:
        """Wraps a client of an SDK; False if it is none that can be recorded."""
        return record_client(client, engine=self._engine, keep_bytes=self._keep_bytes)


def _route(model: Any) -> str:
    """The LiteLLM route of a model, such as ``openai`` or ``hosted_vllm``."""
    return litellm_route(str(model.get_config().get("model_id")), model.client_args)


def _kind(model: Any) -> str | None:
    """The kind of a model among ``_KINDS``, or None. By names, because importing Strands' class imports its SDK."""
    return _kind_of(type(model))  # type: ignore[arg-type]


@functools.cache
def _kind_of(model_class: type) -> str | None:
    # In method resolution order: Strands' LiteLLMModel is also an OpenAIModel.
    for base in model_class.__mro__:
        kind = _KINDS.get(base.__name__)
        if kind is not None and base.__module__ == f"strands.models.{kind}":
            return kind
    return None
