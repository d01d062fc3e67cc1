"""The recording methods of a model, and what a model call tells that is not seen on the wire."""

from __future__ import annotations

import functools
from collections.abc import Generator, Mapping
from typing import Any

from smolagents.models import ChatMessageStreamDelta, TransformersModel, agglomerate_stream_deltas

from rollout_trace.integration import (
    Completion,
    ModelFrame,
    ToolCall,
    Usage,
    active,
    guarded,
    is_recorded,
    run_generator,
)
from rollout_trace_smolagents._classes import Settings
from rollout_trace_smolagents._transformers import Listening
from rollout_trace_smolagents._turns import TurnFrame

_SAMPLING = (
    "do_sample",
    "frequency_penalty",
    "logit_bias",
    "max_completion_tokens",
    "max_new_tokens",
    "max_tokens",
    "min_p",
    "n",
    "num_beams",
    "presence_penalty",
    "reasoning_effort",
    "repetition_penalty",
    "response_format",
    "seed",
    "stop",
    "temperature",
    "tool_choice",
    "top_k",
    "top_p",
)
"""The options of a model that are recorded: others may be keys and passwords."""


class Generation(ModelFrame):
    """A call of ``generate`` or ``generate_stream``."""

    def __init__(self, model: Any) -> None:
        turn = active()
        metadata = turn.metadata if isinstance(turn, TurnFrame) else None
        super().__init__("smolagents", metadata=metadata, model=getattr(model, "model_id", None))
        if isinstance(turn, TurnFrame):
            turn.generation = self
        self.exact: dict[str, Any] = {}
        """Fields of the step from the local model itself, which smolagents' own counts do not replace."""
        self._deltas: list[ChatMessageStreamDelta] = []

    @guarded
    def prepared(self, request: Mapping[str, Any]) -> None:
        """What the model is about to be asked, as smolagents prepared it."""
        messages = [{**message, "role": str.__str__(message["role"])} for message in request.get("messages") or ()]
        sampling = {name: request[name] for name in _SAMPLING if name in request}
        self.tell(messages=messages or None, tools=request.get("tools"), sampling=sampling or None)

    def saw(self, delta: Any) -> None:
        """The next piece of a streamed answer."""
        self._deltas.append(delta)

    @guarded
    def gave(self, message: Any) -> None:
        """The whole answer."""
        raw = getattr(message, "raw", None)
        if not self.calls:
            self.tell(**_fields(message, raw))
        # Where the call was seen, its context has joined it; some servers give all answers one id.
        self.answered(response_id=None if self.calls else _text(raw, "id"))

    def over(self, error: BaseException | None) -> None:
        """The stream is over; ``error`` is what ended it before its end."""
        if error is None:
            self.answered()
        self.end(error)

    def _ended(self, error: BaseException | None) -> None:
        if not self.calls:
            self._so_far()
        super()._ended(error)

    @guarded
    def _so_far(self) -> None:
        """What a stream brought, whole or not."""
        said = _fields(agglomerate_stream_deltas(self._deltas), None) if self._deltas else {}
        self.tell(**said | self.exact)


def model_methods(base: Any, settings: Settings) -> dict[str, Any]:
    """The methods of a recording subclass of a model's class."""

    @functools.wraps(base.generate)
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        generation = _begin(self)
        if generation is None:
            return base.generate(self, *args, **kwargs)
        with generation:
            message = base.generate(self, *args, **kwargs)
            generation.gave(message)
        return message

    methods: dict[str, Any] = {"generate": generate}
    # smolagents asks a model for this method to learn whether it can stream.
    if hasattr(base, "generate_stream"):
        methods["generate_stream"] = _stream_method(base)
    if hasattr(base, "_prepare_completion_kwargs"):
        methods["_prepare_completion_kwargs"] = _prepare_method(base)
    if issubclass(base, TransformersModel):
        methods["model"] = _local_model(settings)
    return methods


def _local_model(settings: Settings) -> property:
    """``TransformersModel.model``: during a call it listens, at any other time it is the model itself.

    ``generate_stream`` runs the model in a thread without context, but asks for its method outside.
    """

    def get(self: Any) -> Any:
        model, generation = self.__dict__["model"], active()
        if not isinstance(generation, Generation):
            return model
        return Listening(model, generation.exact, settings.scores)

    def put(self: Any, model: Any) -> None:
        self.__dict__["model"] = model

    return property(get, put)


def _stream_method(base: Any) -> Any:
    @functools.wraps(base.generate_stream)
    def generate_stream(self: Any, *args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        generation = _begin(self)
        inner = base.generate_stream(self, *args, **kwargs)
        if generation is None:
            return (yield from inner)
        return (yield from run_generator(generation, inner, on_item=generation.saw, on_end=generation.over))

    return generate_stream


def _prepare_method(base: Any) -> Any:
    @functools.wraps(base._prepare_completion_kwargs)
    def _prepare_completion_kwargs(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = base._prepare_completion_kwargs(self, *args, **kwargs)
        # The bytes of a wrapped client say it better.
        if not is_recorded(getattr(self, "client", None)):
            generation = active()
            if isinstance(generation, Generation):
                generation.prepared(request)
        return request

    return _prepare_completion_kwargs


@guarded
def _begin(model: Any) -> Generation:
    return Generation(model)


def _fields(message: Any, raw: Any) -> dict[str, Any]:
    """Fields of a step, of what smolagents made of an answer."""
    fields: dict[str, Any] = {"completion": _completion(message)}
    if message.token_usage is not None:
        fields["usage"] = Usage(input=message.token_usage.input_tokens, output=message.token_usage.output_tokens)
    choices = getattr(raw, "choices", None)
    if choices:
        fields |= {"finish_reason": _text(choices[0], "finish_reason"), "response_model": _text(raw, "model")}
    return fields


def _completion(message: Any) -> Completion:
    calls = tuple(
        ToolCall(
            id=call.id or None,
            name=call.function.name,
            # Before smolagents parses them; a model that gives more than a text has none.
            arguments=call.function.arguments if isinstance(call.function.arguments, str) else None,
        )
        for call in message.tool_calls or ()
    )
    return Completion(content=message.content or None, tool_calls=calls)


def _text(thing: Any, name: str) -> str | None:
    value = getattr(thing, name, None)
    return value if isinstance(value, str) else None
