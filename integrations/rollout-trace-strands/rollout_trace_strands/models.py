"""Recording subclasses of models' own classes, swapped in on the model objects.

Strands calls a model past the agent's loop too, for summaries and memories, where no hook and no middleware runs: only
the model's own `stream` does.
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
"""The attribute of a recorded model that holds how it is recorded."""

_classes: ClassSwap[bool] = ClassSwap("_rollout_trace_strands")
"""The recording classes: one for each class, as each model holds its own settings."""


def swap(model: Any, clients: Clients) -> None:
    """Gives a model a recording subclass of its own class. Models may be swapped again and again.

    One that has no class of this kind (a mock, no ``__dict__``) stays as it is: its calls in the agent's loop are
    recorded all the same.
    """
    held = getattr(model, "__dict__", None)
    if held is None or held.get(_CLIENTS) is clients or not hasattr(plain_class(model), "stream"):
        return
    try:
        _classes.put_on(model, True, _methods)
    except TypeError:
        return
    held[_CLIENTS] = clients


def plain_class(model: Any) -> type:
    """The model's class as it was before it was swapped."""
    return _classes.plain(type(model))


def _methods(base: Any, _: bool) -> dict[str, Any]:
    """The methods of a recording subclass of a model's class."""

    def plain(self: Any, protocol: Any) -> Any:
        # Copies, and what is pickled, have the model's own class: they are swapped when they are first called.
        reduced = base.__reduce_ex__(self, protocol)
        if not isinstance(reduced, tuple):
            return reduced
        make, arguments, *rest = reduced
        # Not `__newobj__`, which refuses another class than the model's.
        make = base.__new__ if make is copyreg.__newobj__ else make  # type: ignore[attr-defined]
        if rest and isinstance(rest[0], dict):
            rest[0] = {name: value for name, value in rest[0].items() if name != _CLIENTS}
        return make, tuple(base if argument is type(self) else argument for argument in arguments), *rest

    @functools.wraps(base.stream)
    def stream(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = _auxiliary(self, *args, **kwargs)
        if call is None:
            return base.stream(self, *args, **kwargs)
        called = call.context.model
        chunks = plain_class(called).stream(called, *args, **kwargs)  # type: ignore[attr-defined]
        return call.run(lambda _: call.kept(chunks))

    methods: dict[str, Any] = {"__reduce_ex__": plain, "stream": stream}
    if hasattr(base, "_get_client"):

        @functools.wraps(base._get_client)
        def _get_client(self: Any, *args: Any, **kwargs: Any) -> Any:
            made, clients = base._get_client(self, *args, **kwargs), vars(self).get(_CLIENTS)
            return made if clients is None else _Opened(made, clients.record)

        methods["_get_client"] = _get_client
    return methods


@guarded
def _auxiliary(
    model: Any, messages: Any, tool_specs: Any = None, system_prompt: Any = None, **rest: Any
) -> AuxiliaryCall | None:
    """A call of a model past the agent's loop; None for one that the loop makes, or outside every recorded run."""
    frame = active()
    if frame is None or isinstance(frame, ModelFrame):
        return None
    clients: Clients | None = vars(model).get(_CLIENTS)
    if clients is None:
        # Made by a copy of the user's own.
        return None
    called, is_reached, client = clients.prepare(model)
    context = InvokeModelContext(
        agent=None,  # type: ignore[arg-type]
        messages=messages if is_reached else chat.snapshot(messages),
        system_prompt=rest.get("system_prompt_content") or system_prompt,
        tool_specs=tool_specs or [],
        tool_choice=None,
        invocation_state={},
        model=called,
    )
    return AuxiliaryCall(ModelFrame("strands", metadata={"turn": "auxiliary"}), context, is_reached, client)


class _Opened:
    """What ``OpenAIModel`` enters for a call: the client in it records."""

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


__all__ = ["plain_class", "swap"]
