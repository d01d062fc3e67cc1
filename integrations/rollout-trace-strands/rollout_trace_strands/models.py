"""Wraps the SDK clients inside Strands' model objects, and gives the models recording subclasses of their own classes.

The subclasses record the calls that Strands makes outside the agent's loop, for summaries and memories: there no hook
and no middleware runs, only the model's own ``stream``.
"""

from __future__ import annotations

import copy
import copyreg
import functools
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rollout_trace.integration import (
    ClassSwap,
    ModelFrame,
    active,
    guarded,
    http_kind,
    is_left_to_process,
    litellm_client,
    litellm_route,
    record_client,
    record_litellm_client,
    wrap_httpx,
)
from rollout_trace_strands import chat
from rollout_trace_strands.middleware import InvokeModelContext
from rollout_trace_strands.stages import AuxiliaryCall

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


_CLIENTS = "_rollout_trace_clients"
"""The attribute of a recorded model that holds its ``Clients``."""

_classes: ClassSwap[bool] = ClassSwap("_rollout_trace_strands", is_tracked=True)
"""The recording classes: one for each class, because each model object holds its own settings."""


def swap_class(model: Any, clients: Clients) -> None:
    """Gives a model a recording subclass of its own class. May be called repeatedly.

    A model that cannot have one (a mock, one without ``__dict__``) is left unchanged; its calls in the agent's loop are
    recorded all the same.
    """
    attributes = getattr(model, "__dict__", None)
    if attributes is None or attributes.get(_CLIENTS) is clients or not hasattr(plain_class(model), "stream"):
        return
    try:
        _classes.put_on(model, True, _methods)
    except TypeError:
        return
    attributes[_CLIENTS] = clients


def restore_classes(clients: Clients) -> None:
    """Gives the models that record with these clients their own classes again."""
    _classes.take_off_all(lambda model: vars(model).get(_CLIENTS) is clients and vars(model).pop(_CLIENTS) is clients)


def plain_class(model: Any) -> type:
    """The model's own class: without the recording subclass, if it has one."""
    return _classes.plain(type(model))


def _methods(base: Any, _: bool) -> dict[str, Any]:
    """The methods of a recording subclass of a model's class."""

    def reduce_as_plain(self: Any, protocol: Any) -> Any:
        # Copies and pickles have the model's own class; they get a recording class when an agent first uses them.
        reduced = base.__reduce_ex__(self, protocol)
        if not isinstance(reduced, tuple):
            return reduced
        make, arguments, *rest = reduced
        # Not `__newobj__`: pickle would refuse it, as its first argument must be the class of the object.
        make = base.__new__ if make is copyreg.__newobj__ else make  # type: ignore[attr-defined]
        if rest and isinstance(rest[0], dict):
            rest[0] = {name: value for name, value in rest[0].items() if name != _CLIENTS}
        return make, tuple(base if argument is type(self) else argument for argument in arguments), *rest

    @functools.wraps(base.stream)
    def stream(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = _begin_auxiliary_call(self, *args, **kwargs)
        if call is None:
            return base.stream(self, *args, **kwargs)
        called = call.context.model
        # On the plain class: the model's own `stream` is this function.
        chunks = plain_class(called).stream(called, *args, **kwargs)  # type: ignore[attr-defined]
        return call.run(lambda _: call.collect(chunks))

    methods: dict[str, Any] = {"__reduce_ex__": reduce_as_plain, "stream": stream}
    if hasattr(base, "_get_client"):

        @functools.wraps(base._get_client)
        def _get_client(self: Any, *args: Any, **kwargs: Any) -> Any:
            context, clients = base._get_client(self, *args, **kwargs), vars(self).get(_CLIENTS)
            return context if clients is None else _RecordedClientContext(context, clients.record_client)

        methods["_get_client"] = _get_client
    return methods


@guarded
def _begin_auxiliary_call(
    model: Any, messages: Any, tool_specs: Any = None, system_prompt: Any = None, **rest: Any
) -> AuxiliaryCall | None:
    """Begins the record of a model call outside the agent's loop.

    Returns:
        None for a call inside the loop, which the middleware records, or outside every recorded run.
    """
    frame = active()
    if frame is None or isinstance(frame, ModelFrame):
        return None
    clients: Clients | None = vars(model).get(_CLIENTS)
    if clients is None:
        # A copy made by the user's own code: it has the recording class, but not this attribute.
        return None
    called, is_client_recorded = clients.prepare(model)
    context = InvokeModelContext(
        agent=None,  # type: ignore[arg-type]
        messages=messages if is_client_recorded else chat.snapshot(messages),
        system_prompt=rest.get("system_prompt_content") or system_prompt,
        tool_specs=tool_specs or [],
        tool_choice=None,
        invocation_state={},
        model=called,
    )
    return AuxiliaryCall(ModelFrame("strands", metadata={"turn": "auxiliary"}), context, is_client_recorded)


class _RecordedClientContext:
    """The context manager in which ``OpenAIModel`` makes a client for a call; the client is wrapped when it opens."""

    def __init__(self, context: AbstractAsyncContextManager[Any], record: Callable[[Any], object]) -> None:
        self._context = context
        self._record = record

    async def __aenter__(self) -> Any:
        client = await self._context.__aenter__()
        self._record(client)
        return client

    def __aexit__(self, *exception: Any) -> Awaitable[bool | None]:
        # Not `asynccontextmanager`: an event loop that shuts down closes its generators in any order.
        return self._context.__aexit__(*exception)
