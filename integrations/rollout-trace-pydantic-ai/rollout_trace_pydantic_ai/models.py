"""Recording subclasses of models' own classes, swapped in on the model objects.

Every call of a model passes through its ``request`` or ``request_stream``, in the task that makes the call: those of an
agent, of each model of a ``FallbackModel``, and of ``pydantic_ai.direct``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from types import MethodType
from typing import Any, NamedTuple

from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model, StreamedResponse
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.wrapper import WrapperModel

from rollout_trace.integration import (
    ClassSwap,
    Engine,
    EngineName,
    ModelFrame,
    enter,
    entered,
    guarded,
    record_client,
)
from rollout_trace_pydantic_ai.runs import ModelCall


class Settings(NamedTuple):
    """Settings that a model records with."""

    engine: EngineName | Engine | None
    keep_bytes: bool
    is_asked: bool = False
    """Whether the user asked for this model; False for one that was found in a recorded run."""


_classes: ClassSwap[Settings] = ClassSwap("_rollout_trace_pydantic_ai", is_pickled=True, is_tracked=True)


@guarded
def record_model(model: Any, settings: Settings) -> None:
    """Starts recording a model, or those inside one that only passes calls on. May be called before each call.

    A model that records already keeps its settings, unless an engine is given.
    """
    if isinstance(model, WrapperModel):
        record_model(model.wrapped, settings)
    elif isinstance(model, FallbackModel):
        for one in model.models:
            record_model(one, settings)
    elif isinstance(model, Model):
        found = _classes.settings_of(model)
        wanted = settings if found is None or settings.engine is not None else found
        wanted = wanted._replace(is_asked=settings.is_asked or (found is not None and found.is_asked))
        if found != wanted:
            _classes.put_on(model, wanted, _methods)


def forget(settings: Settings) -> None:
    """Stops recording the models of runs with these settings. Other runs with equal settings restart theirs."""
    _classes.take_off_all(lambda model: _classes.settings_of(model) == settings)


def _record_client_of(model: Any) -> bool:
    """Makes the client of a recorded model record; False if there is none whose bytes can be seen."""
    settings = _classes.settings_of(model) or Settings(None, False)
    return record_client(getattr(model, "client", None), engine=settings.engine, keep_bytes=settings.keep_bytes)


@guarded
def _begin(model: Any, *args: Any, **kwargs: Any) -> ModelCall | None:
    """Begins the record of a call; None inside another model's, whose frame gets what the client sends."""
    outer = entered()
    if isinstance(outer, ModelFrame) and outer.is_open:
        _record_client_of(model)
        return None
    return ModelCall(_record_client_of(model), model, *args, **kwargs)


async def _request(base: Any, model: Any, *args: Any, **kwargs: Any) -> ModelResponse:
    call = _begin(model, *args, **kwargs)
    if call is None:
        return await base.request(model, *args, **kwargs)  # type: ignore[no-any-return]
    outside = enter(call.frame)
    try:
        response: ModelResponse = await base.request(model, *args, **kwargs)
    except BaseException as error:
        call.failed(error)
        raise
    finally:
        enter(outside)
    call.answered(response)
    return response


@asynccontextmanager
async def _request_stream(base: Any, model: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[StreamedResponse]:
    call = _begin(model, *args, **kwargs)
    opening = base.request_stream(model, *args, **kwargs)
    if call is None:
        async with opening as stream:
            yield stream
        return
    opened: StreamedResponse | None = None
    outside = enter(call.frame)
    try:
        async with opening as stream:
            # The call is made. What the consumer does while it reads the answer is not the call's.
            enter(outside)
            opened = stream
            yield stream
    except BaseException as error:
        if opened is None:
            enter(outside)
        call.failed(error, opened)
        raise
    if _is_read(stream):
        call.answered(stream)
    else:
        call.failed(GeneratorExit("the stream was closed before its end"), stream)


def _is_read(stream: Any) -> bool:
    """Whether a stream was read to its end. One that its reader left, or never began, may end without an exception."""
    iterator = getattr(stream, "_event_iterator", ...)
    return iterator is not None and getattr(iterator, "ag_frame", None) is None


class _Method:
    """A function as a method. Not a plain function: Pydantic AI wraps those of a model class when it is made."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __get__(self, model: Any, owner: type | None = None) -> Any:
        return self._function if model is None else MethodType(self._function, model)


def _methods(base: Any, settings: Settings) -> dict[str, Any]:
    """The methods of a recording subclass of a model's class."""

    async def request(self: Any, *args: Any, **kwargs: Any) -> ModelResponse:
        return await _request(base, self, *args, **kwargs)

    def request_stream(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _request_stream(base, self, *args, **kwargs)

    methods = {"request": _Method(request)}
    # Pydantic AI takes a class that has a `request_stream` of its own for one that can stream.
    if base.request_stream is not Model.request_stream:
        methods["request_stream"] = _Method(request_stream)
    return methods
