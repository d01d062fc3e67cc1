"""Recording subclasses of the classes of models and of their providers, swapped in on the objects themselves."""

from __future__ import annotations

import functools
import importlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

from agents import Model, ModelProvider, OpenAIChatCompletionsModel, OpenAIResponsesModel, OpenAIResponsesWSModel
from agents.models.multi_provider import MultiProvider

from rollout_trace.integration import ClassSwap, active, enter, guarded, record_client, run_async_generator
from rollout_trace_openai_agents import chat, litellm_clients
from rollout_trace_openai_agents.frames import CallFrame, current_run
from rollout_trace_openai_agents.settings import Settings

_classes: ClassSwap[Settings] = ClassSwap("_rollout_trace_openai_agents", is_pickled=True, is_tracked=True)
_NAMES = ("system_instructions", "input", "model_settings", "tools", "output_schema", "handoffs", "tracing")
"""The parameters of a model's two methods, which the SDK passes by position or by name."""


def settings_on(thing: object) -> Settings | None:
    """How an agent, model or provider was asked to record; None if it was not, or if a recorded run made it record."""
    settings = _classes.settings_of(thing)
    return settings if settings is not None and settings.is_asked else None


def record_agent(agent: Any, settings: Settings) -> None:
    """Marks an agent, and clones of it, as to be recorded. Its models and those of others are found when it runs."""
    _classes.put_on(agent, settings, _nothing)


@guarded
def record_model(model: Model, settings: Settings) -> None:
    """Makes a model record, and the models that it keeps inside, such as one that it retries with."""
    if _is_set(model, settings):
        return
    try:
        _classes.put_on(model, settings, _model_methods)
    except TypeError:  # It cannot have another class; its client can be wrapped all the same.
        _record_client(getattr(model, "_client", None), settings)
        return
    if any(base.__name__ == "LitellmModel" for base in type(model).__mro__):
        litellm_clients.install()
    for inner in list(getattr(model, "__dict__", {}).values()):
        if isinstance(inner, Model):
            record_model(inner, settings)


@guarded
def record_provider(provider: Any, settings: Settings) -> None:
    """Makes a provider return models that record."""
    if not _is_set(provider, settings):
        _classes.put_on(provider, settings, _provider_methods)


def forget(settings: Settings) -> None:
    """Stops recording the models of runs with these settings. Other runs with equal settings restart theirs."""
    _classes.take_off_all(lambda thing: _classes.settings_of(thing) == replace(settings, is_asked=False))


def _is_set(thing: object, settings: Settings) -> bool:
    """Whether an object records already: what its user asked for counts before what a run needs."""
    found = _classes.settings_of(thing)
    return found == settings or (found is not None and found.is_asked and not settings.is_asked)


def install() -> None:
    """Wraps ``MultiProvider.get_model``, once in a process: a run without a ``RunConfig`` makes its own provider."""
    base = MultiProvider.get_model

    @functools.wraps(base)
    def get_model(self: MultiProvider, *args: Any, **kwargs: Any) -> Model:
        model = base(self, *args, **kwargs)
        run = current_run()
        if run is not None:
            record_model(model, run.settings)
        return model

    MultiProvider.get_model = get_model  # type: ignore[method-assign]


def _nothing(base: Any, settings: Settings) -> dict[str, Any]:
    # In a process that an agent was sent to, nothing else has been imported: runs have to be noticed there too.
    importlib.import_module("rollout_trace_openai_agents.entry")
    return {}


def _provider_methods(base: type[ModelProvider], settings: Settings) -> dict[str, Any]:
    @functools.wraps(base.get_model)
    def get_model(self: Any, *args: Any, **kwargs: Any) -> Model:
        model = base.get_model(self, *args, **kwargs)
        record_model(model, settings)
        return model

    return {"get_model": get_model}


def _model_methods(base: type[Model], settings: Settings) -> dict[str, Any]:
    @functools.wraps(base.get_response)
    async def get_response(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = _begin(self, settings, args, kwargs)
        if call is None:
            return await base.get_response(self, *args, **kwargs)
        outside = enter(call.frame)
        try:
            response = await base.get_response(self, *args, **kwargs)
        except BaseException as error:
            call.end(error)
            raise
        finally:
            enter(outside)
        call.response = response
        call.end(None)
        return response

    @functools.wraps(base.stream_response)
    def stream_response(self: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        call = _begin(self, settings, args, kwargs)
        if call is None:
            return base.stream_response(self, *args, **kwargs)
        return call.stream(functools.partial(base.stream_response, self, *args, **kwargs))

    methods: dict[str, Any] = {"get_response": get_response, "stream_response": stream_response}
    if hasattr(base, "_get_client"):

        @functools.wraps(base._get_client)
        def _get_client(self: Any) -> Any:
            client = base._get_client(self)
            _record_client(client, settings)
            return client

        methods["_get_client"] = _get_client
    return methods


@guarded
def _record_client(client: Any, settings: Settings) -> None:
    record_client(client, engine=settings.engine, keep_bytes=settings.keep_bytes)


@guarded
def _begin(model: Any, settings: Settings, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ModelCall | None:
    """Begins a model call; None for one inside another, of a model that calls another model."""
    if isinstance(active(), CallFrame):
        return None
    run = current_run()
    frame = CallFrame(settings) if run is None else run.call_begins(settings)
    return ModelCall(model, frame, {**dict(zip(_NAMES, args, strict=False)), **kwargs})


class ModelCall:
    """One call of a model.

    Args:
        model: the model.
        frame: of the call.
        asked: the arguments, by their names.
    """

    def __init__(self, model: Any, frame: CallFrame, asked: dict[str, Any]) -> None:
        self._model = model
        self.frame = frame
        self._asked = asked
        self.response: Any = None
        """The SDK's ``ModelResponse``, or the ``Response`` of a stream's last event."""

    def stream(self, begin: Callable[[], AsyncIterator[Any]]) -> AsyncIterator[Any]:
        """The events of a stream, each of which is made inside the frame."""
        outside = enter(self.frame)
        try:
            events = begin()
        except BaseException as error:
            self.end(error)
            raise
        finally:
            enter(outside)

        async def close(error: BaseException | None) -> None:
            # An async generator is not closed with the one that reads it.
            try:
                if error is not None and hasattr(events, "aclose"):
                    await events.aclose()
            finally:
                self.end(error)

        return run_async_generator(self.frame, events, on_item=self._arrived, on_end=close)

    def _arrived(self, event: Any) -> None:
        if getattr(event, "type", None) in ("response.completed", "response.incomplete"):
            self.response = event.response
            # Now: a reader may leave here, and the stream be closed after its run.
            self._fill()

    @guarded
    def end(self, error: BaseException | None) -> None:
        """Ends the frame. A reader that leaves the stream at its last event, as the SDK may, has the whole answer."""
        if self.response is not None and isinstance(error, GeneratorExit):
            error = None
        try:
            self._fill()
        finally:
            self.frame.end(error)

    def _fill(self) -> None:
        """If no bytes were seen, sets what the SDK's objects have of the call."""
        if self.frame.calls or not self.frame.is_open:
            return
        self.frame.tell(**chat.request_fields(self._model, self._asked))
        if self.response is not None:
            fields, response_id = chat.answer_fields(self.response)
            self.frame.answered(fields, response_id=response_id, cached=_sends(self._model))


def _sends(model: Any) -> bool:
    """Whether each answer of a model is one of a request that is seen: without one, it came from a cache."""
    kinds = (OpenAIChatCompletionsModel, OpenAIResponsesModel)
    return isinstance(model, kinds) and not isinstance(model, OpenAIResponsesWSModel)
