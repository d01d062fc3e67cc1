"""The SDK clients inside Strands' model objects, made to record."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import rollout_trace as rt
from rollout_trace.clients.common import client_kind
from rollout_trace.clients.seam import settings_of
from rollout_trace.frames import guarded

_KINDS = {"LiteLLMModel": "litellm", "OpenAIModel": "openai", "AnthropicModel": "anthropic"}
"""Strands' classes whose clients can be reached, and their modules in ``strands.models``."""


class Clients:
    """Wraps the clients of models, with the settings of one provider."""

    def __init__(self, engine: str | None, keep_bytes: bool) -> None:
        self._engine = engine
        self._keep_bytes = keep_bytes
        self._settled: set[type] = set()
        """The classes of clients that record as they should: a class carries its settings."""

    def __getstate__(self) -> dict[str, Any]:
        """A model that is pickled takes it along; the classes of clients are this process's."""
        return {**vars(self), "_settled": set()}

    def reach(self, model: Any) -> bool:
        """Lets a model's client record; False where there is none that can. Models may be reached again and again."""
        kind = _kind(model)
        if kind == "openai":
            made = vars(model).get("_get_client")
            if not isinstance(made, _Recorded):
                made = model._get_client = _Recorded(model._get_client)
            made.record = self._record
            return model._custom_client is None or self._record(model._custom_client)
        if kind == "anthropic":
            return self._record(model.client)
        # On other routes LiteLLM makes no use of a client of OpenAI's.
        return kind == "litellm" and self._record(model.client_args.get("client")) and _is_openai_route(model)

    def replaced(self, model: Any) -> tuple[Any, Any] | None:
        """A model to call in the place of one whose client cannot be reached, and its client, to be closed.

        LiteLLM makes the clients of its ``openai/`` routes itself, and shares them in the process: those that go to an
        address of their own get a client of ours for the call, as Strands' own model for OpenAI has one.
        """
        if _kind(model) != "litellm" or type(model).__module__ != "strands.models.litellm":
            # A copy would lose what a class of the user's keeps on the model.
            return None
        given = model.client_args
        address = given.get("base_url") or given.get("api_base")
        if not _is_openai_route(model) or given.get("client") is not None or address is None:
            return None
        from openai import AsyncOpenAI

        client = AsyncOpenAI(api_key=given.get("api_key"), base_url=address)
        self._record(client)
        called = copy.copy(model)
        called.client_args = {**given, "client": client}
        return called, client

    @guarded
    def _record(self, client: Any) -> bool:
        if type(client) in self._settled:
            return True
        if client_kind(client, "openai") is not None:
            # A client that its user wrapped keeps the user's settings where the provider was given none.
            if settings_of(client) is None or self._engine is not None:
                rt.wrap_openai(client, engine=self._engine, keep_bytes=self._keep_bytes)
        elif client_kind(client, "anthropic") is not None:
            if settings_of(client) is None:
                rt.wrap_anthropic(client, keep_bytes=self._keep_bytes)
        else:
            return False
        self._settled.add(type(client))
        return True


class _Recorded:
    """``OpenAIModel._get_client`` of one model: the client it makes for a call records.

    An object, not a closure: a copy of the model has a copy of it, bound to the copy.
    """

    def __init__(self, made: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self._made = made
        self.record: Callable[[Any], object] = bool

    def __call__(self) -> _Opened:
        return _Opened(self._made(), self.record)


class _Opened:
    """What the model enters for a call."""

    def __init__(self, made: AbstractAsyncContextManager[Any], record: Callable[[Any], object]) -> None:
        self._made = made
        self._record = record

    async def __aenter__(self) -> Any:
        client = await self._made.__aenter__()
        self._record(client)
        return client

    def __aexit__(self, *exception: Any) -> Awaitable[bool | None]:
        # Not a generator around it: an event loop that shuts down closes its generators in any order.
        return self._made.__aexit__(*exception)


def _is_openai_route(model: Any) -> bool:
    return str(model.get_config().get("model_id")).startswith("openai/")


def _kind(model: Any) -> str | None:
    """Which of Strands' classes a model is of, without importing the SDK behind it."""
    # From the class up: Strands' LiteLLMModel is an OpenAIModel.
    for base in type(model).__mro__:
        kind = _KINDS.get(base.__name__)
        if kind is not None and base.__module__ == f"strands.models.{kind}":
            return kind
    return None
