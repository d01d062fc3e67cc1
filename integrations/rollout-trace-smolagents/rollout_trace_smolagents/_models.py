"""The recording methods of a model, and fields of a step for model calls whose bytes are not seen."""

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
from rollout_trace_smolagents._transformers import RecordingModel
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
"""The request options that are recorded. A list of allowed names, because others may be keys and passwords."""


class GenerationFrame(ModelFrame):
    """Frame of one call of ``generate`` or ``generate_stream``."""

    def __init__(self, model: Any) -> None:
        turn = active()
        metadata = turn.metadata if isinstance(turn, TurnFrame) else None
        super().__init__("smolagents", metadata=metadata, model=getattr(model, "model_id", None))
        if isinstance(turn, TurnFrame):
            turn.generation = self
        self.local_facts: dict[str, Any] = {}
        """Fields of the step from a local model itself. They take precedence over smolagents' own counts."""
        self._deltas: list[ChatMessageStreamDelta] = []

    @guarded
    def set_request(self, request: Mapping[str, Any]) -> None:
        """Sets messages, tools and sampling options from the request that smolagents prepared."""
        # `str.__str__`: the role may be an enum, whose own `str()` is the name of the member.
        messages = [{**message, "role": str.__str__(message["role"])} for message in request.get("messages") or ()]
        sampling = {name: request[name] for name in _SAMPLING if name in request}
        self.tell(messages=messages or None, tools=request.get("tools"), sampling=sampling or None)

    def add_delta(self, delta: Any) -> None:
        """Adds the next delta of a streamed answer."""
        self._deltas.append(delta)

    @guarded
    def set_answer(self, message: Any) -> None:
        """Sets the whole answer of ``generate``."""
        raw = getattr(message, "raw", None)
        if not self.calls:
            self.tell(**_answer_fields(message, raw))
        # A recorded call is matched by its context already; the id could mislead, as some servers reuse one id.
        self.answered(response_id=None if self.calls else _string_attribute(raw, "id"))

    def end_stream(self, error: BaseException | None) -> None:
        """Ends the frame with the stream. ``error``: the exception that ended it early, or None."""
        if error is None:
            self.answered()
        self.end(error)

    def _ended(self, error: BaseException | None) -> None:
        if not self.calls:
            self._add_streamed_answer()
        super()._ended(error)

    @guarded
    def _add_streamed_answer(self) -> None:
        """Adds the fields of a streamed answer, complete or not, and those from a local model."""
        fields = _answer_fields(agglomerate_stream_deltas(self._deltas), None) if self._deltas else {}
        self.tell(**fields | self.local_facts)


def model_methods(base: Any, settings: Settings) -> dict[str, Any]:
    """The methods of a recording subclass of a model's class."""

    @functools.wraps(base.generate)
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        generation = _begin(self)
        if generation is None:
            return base.generate(self, *args, **kwargs)
        with generation:
            message = base.generate(self, *args, **kwargs)
            generation.set_answer(message)
        return message

    methods: dict[str, Any] = {"generate": generate}
    # Only if the base has it: smolagents streams with any model that has this method.
    if hasattr(base, "generate_stream"):
        methods["generate_stream"] = _stream_method(base)
    if hasattr(base, "_prepare_completion_kwargs"):
        methods["_prepare_completion_kwargs"] = _prepare_method(base)
    if issubclass(base, TransformersModel):
        methods["model"] = _local_model(settings)
    return methods


def _local_model(settings: Settings) -> property:
    """A property for ``TransformersModel.model``: during a call a ``RecordingModel``, otherwise the model itself.

    ``generate_stream`` runs the model in a thread without context, but looks up its ``generate`` before, in this one.
    """

    def get_model(self: Any) -> Any:
        model, generation = self.__dict__["model"], active()
        if not isinstance(generation, GenerationFrame):
            return model
        return RecordingModel(model, generation.local_facts, settings.scores)

    def set_model(self: Any, model: Any) -> None:
        self.__dict__["model"] = model

    return property(get_model, set_model)


def _stream_method(base: Any) -> Any:
    @functools.wraps(base.generate_stream)
    def generate_stream(self: Any, *args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        generation = _begin(self)
        inner = base.generate_stream(self, *args, **kwargs)
        if generation is None:
            return (yield from inner)
        return (yield from run_generator(generation, inner, on_item=generation.add_delta, on_end=generation.end_stream))

    return generate_stream


def _prepare_method(base: Any) -> Any:
    @functools.wraps(base._prepare_completion_kwargs)
    def _prepare_completion_kwargs(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = base._prepare_completion_kwargs(self, *args, **kwargs)
        # With a wrapped client the request is recorded from its bytes.
        if not is_recorded(getattr(self, "client", None)):
            generation = active()
            if isinstance(generation, GenerationFrame):
                generation.set_request(request)
        return request

    return _prepare_completion_kwargs


@guarded
def _begin(model: Any) -> GenerationFrame:
    return GenerationFrame(model)


def _answer_fields(message: Any, raw: Any) -> dict[str, Any]:
    """Fields of a step from smolagents' message, and from ``raw``, the SDK's response object, if there is one."""
    fields: dict[str, Any] = {"completion": _completion(message)}
    if message.token_usage is not None:
        fields["usage"] = Usage(input=message.token_usage.input_tokens, output=message.token_usage.output_tokens)
    choices = getattr(raw, "choices", None)
    if choices:
        fields |= {
            "finish_reason": _string_attribute(choices[0], "finish_reason"),
            "response_model": _string_attribute(raw, "model"),
        }
    return fields


def _completion(message: Any) -> Completion:
    calls = tuple(
        ToolCall(
            id=call.id or None,
            name=call.function.name,
            # The text that the model wrote, before smolagents parses it; None if the model class has parsed it already.
            arguments=call.function.arguments if isinstance(call.function.arguments, str) else None,
        )
        for call in message.tool_calls or ()
    )
    return Completion(content=message.content or None, tool_calls=calls)


def _string_attribute(thing: Any, name: str) -> str | None:
    value = getattr(thing, name, None)
    return value if isinstance(value, str) else None
