"""The SDK clients inside Strands' model objects, made to record."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from rollout_trace.integration import (
    client_kind,
    guarded,
    http_kind,
    is_recorded,
    wrap_anthropic,
    wrap_httpx,
    wrap_openai,
)
from rollout_trace_strands.models import plain_class, swap

if TYPE_CHECKING:
    from rollout_trace.integration import EngineName

_KINDS = {
    "AnthropicModel": "anthropic",
    "LiteLLMModel": "litellm",
    "LlamaCppModel": "llamacpp",
    "OpenAIModel": "openai",
}
"""Strands' classes whose clients can be reached, and their modules in ``strands.models``."""


class Clients:
    """Wraps the clients of models, with the settings of one provider."""

    def __init__(self, engine: EngineName | None, keep_bytes: bool) -> None:
        self._engine = engine
        self._keep_bytes = keep_bytes
        self._settled: set[type] = set()
        """The classes of clients that record as they should: a class carries its settings."""

    def prepare(self, model: Any) -> tuple[Any, bool, Any]:
        """What to call in the place of a model, whether its client records, and a client to close after the call."""
        if self.reach(model):
            return model, True, None
        replaced = self._replaced(model)
        if replaced is None:
            return model, False, None
        # How LiteLLM comes to a server of `hosted_vllm/` is its own affair: a call that was not seen is told.
        return replaced[0], _route(model) == "openai", replaced[1]

    @guarded
    def reach(self, model: Any) -> bool:
        """Lets a model and its client record; False where it has no client that can. Done again and again."""
        swap(model, self)
        kind = _kind(model)
        if kind == "openai":
            return model._custom_client is None or self.record(model._custom_client)
        if kind == "anthropic":
            return self.record(model.client)
        if kind == "llamacpp":
            return self._record_http(model.client, "llama-server")
        if kind != "litellm":
            return False
        given = model.client_args.get("client")
        if _route(model) == "hosted_vllm":
            self._record_http(getattr(given, "client", None), "vllm")
        # On other routes LiteLLM makes no use of a client of OpenAI's.
        return self.record(given) and _route(model) == "openai"

    @guarded
    def _replaced(self, model: Any) -> tuple[Any, Any] | None:
        """A model to call in the place of one whose client cannot be reached, and its client, to be closed.

        LiteLLM makes its clients itself, and shares them in the process: those of its ``openai/`` routes that go to an
        address of their own, and of ``hosted_vllm/``, get a client of ours for the call, as Strands' own model for
        OpenAI has one.
        """
        if _kind(model) != "litellm" or plain_class(model).__module__ != "strands.models.litellm":
            # A copy would lose what a class of the user's keeps on the model.
            return None
        given, route = model.client_args, _route(model)
        if given.get("client") is not None:
            return None
        address = given.get("base_url") or given.get("api_base")
        if route == "openai" and address is not None:
            from openai import AsyncOpenAI

            client: Any = AsyncOpenAI(api_key=given.get("api_key"), base_url=address)
            self.record(client)
        elif route == "hosted_vllm":
            client = self._hosted_client()
        else:
            return None
        called = copy.copy(model)
        called.client_args = {**given, "client": client}
        return called, client

    def _hosted_client(self) -> Any:
        """A client of LiteLLM's own kind that records, whichever HTTP client it makes."""
        from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler

        handler: Any = AsyncHTTPHandler()
        make = handler.create_client

        def create_client(*args: Any, **kwargs: Any) -> Any:
            # For the second try after a connection error.
            client = make(*args, **kwargs)
            self._record_http(client, "vllm")
            return client

        handler.create_client = create_client
        self._record_http(handler.client, "vllm")
        return handler

    @guarded
    def _record_http(self, client: Any, engine: str) -> bool:
        """Lets a client of httpx record. The model says which engine it is for; the user, whether it is asked."""
        if http_kind(client) is None:
            return False
        wrap_httpx(client, engine=None if self._engine is None else engine, keep_bytes=self._keep_bytes)
        return True

    @guarded
    def record(self, client: Any) -> bool:
        """Lets a client record; False where it is none that can."""
        if type(client) in self._settled:
            return True
        if client_kind(client, "openai") is not None:
            # A client that its user wrapped keeps the user's settings where the provider was given none.
            if not is_recorded(client) or self._engine is not None:
                wrap_openai(client, engine=self._engine, keep_bytes=self._keep_bytes)
        elif client_kind(client, "anthropic") is not None:
            if not is_recorded(client):
                wrap_anthropic(client, keep_bytes=self._keep_bytes)
        else:
            return False
        self._settled.add(type(client))
        return True


def _route(model: Any) -> str:
    """LiteLLM's name for the kind of server a model is called at."""
    return str(model.get_config().get("model_id")).partition("/")[0]


def _kind(model: Any) -> str | None:
    """Which of Strands' classes a model is of, without importing the SDK behind it."""
    # From the class up: Strands' LiteLLMModel is an OpenAIModel.
    for base in type(model).__mro__:
        kind = _KINDS.get(base.__name__)
        if kind is not None and base.__module__ == f"strands.models.{kind}":
            return kind
    return None
