"""Recording subclasses of models' own classes, swapped in on the model objects.

They record the calls that Strands makes outside the agent's loop, for summaries and memories: there no hook and no
middleware runs, only the model's own ``stream``.
"""

from __future__ import annotations

import copyreg
import functools
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from rollout_trace.integration import ClassSwap, ModelFrame, active, guarded
from rollout_trace_strands import chat
from rollout_trace_strands.middleware import InvokeModelContext
from rollout_trace_strands.stages import AuxiliaryCall

if TYPE_CHECKING:
    from rollout_trace_strands.clients import Clients

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


__all__ = ["plain_class", "restore_classes", "swap_class"]
