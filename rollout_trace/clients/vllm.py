"""``rt.wrap_vllm``: recording for vLLM's offline ``LLM`` and its ``AsyncLLM``, in the process that samples with them.

vLLM is not imported: objects are recognised by the modules of their classes. Overridden are methods that users call.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from rollout_trace import guard
from rollout_trace.clients import recorder, sampler, vllm_json
from rollout_trace.clients.sampler import Calls, PolicyVersion, SamplerSettings
from rollout_trace.clients.tee import Ender
from rollout_trace.record.settings import MAX_CALL_BYTES
from rollout_trace.wire.profiles import profile

if TYPE_CHECKING:
    from rollout_trace.data.model import LogprobsMode
    from rollout_trace.record.call import Call

L = TypeVar("L")

PROTOCOL = "vllm.llm"
_DELTA = 1
"""``RequestOutputKind.DELTA``."""
_queued: WeakKeyDictionary[Any, dict[str, _Queued]] = WeakKeyDictionary()
"""Of each ``LLM`` the calls that were enqueued and not waited for, by request id."""


def wrap_vllm(
    llm: L,
    *,
    logprobs: bool = False,
    policy_version: PolicyVersion = None,
    logprobs_mode: LogprobsMode | None = None,
    keep_bytes: bool = False,
    max_call_bytes: int = MAX_CALL_BYTES,
) -> L:
    """Records every completion of vLLM's ``LLM`` or ``AsyncLLM``. Returns the same object.

    Recorded methods of an ``LLM``: ``generate``, ``chat``, ``beam_search``, ``enqueue`` and ``enqueue_chat`` with
    ``wait_for_completion``; of an ``AsyncLLM``: ``generate``. Each prompt is one call, and its ``n`` completions are
    its steps. Return values are unchanged. Nothing more is requested from vLLM, unless ``logprobs=True``.

    Args:
        llm: a ``vllm.LLM`` or ``vllm.AsyncLLM``.
        logprobs: if the sampling parameters ask for no logprobs, ask for those of the sampled tokens (``logprobs=0``),
            on a copy of the parameters. The outputs then have them.
        policy_version: version of the weights, or a function that returns it when a call begins. vLLM's own versions
            (``weight_versions`` of an output) take precedence; without either, it is the name of the LoRA.
        logprobs_mode: distribution of the logprobs; by default as the model is configured.
        keep_bytes: keep the recorded request and answer on the steps.
        max_call_bytes: limit on the bytes kept of one request, and of one answer.

    Wrapping again only changes the settings. ``rt.unwrap(llm)`` undoes it.

    Raises:
        TypeError: ``llm`` is not a vLLM object that generates, or an argument has the wrong type.
        ValueError: ``logprobs_mode`` is unknown, or ``max_call_bytes`` is below 1.
    """
    kind = sampler.recording.plain(type(llm))
    if not any(one.__module__.partition(".")[0] == "vllm" for one in kind.__mro__) or not hasattr(kind, "generate"):
        raise TypeError(f"wrap_vllm() needs an LLM or AsyncLLM of vLLM, got {llm!r:.80}.")
    engine = profile("vllm")
    assert engine is not None
    settings = sampler.settings_for(engine, keep_bytes, max_call_bytes, logprobs_mode, logprobs)
    version = sampler.check_version(policy_version)
    is_async = any(inspect.isasyncgenfunction(vars(one).get("generate")) for one in kind.__mro__)
    sampler.put_on(llm, settings, _async_methods if is_async else _methods, version)
    return llm


class _Queued:
    """A call that was enqueued, with the prompt's ids as they were sent, and what its output does not have."""

    def __init__(self, call: Call | None, sent: Any, facts: Mapping[str, Any]) -> None:
        self.call, self.sent, self.facts = call, sent, facts


class _Run(Calls):
    """One call of the user's: what is asked for each prompt, and the arguments that are passed on."""

    __slots__ = ("bound", "facts", "sent")

    def __init__(self, llm: Any, settings: SamplerSettings, of_each: Any, bound: inspect.BoundArguments) -> None:
        """``of_each``: from the bound arguments to the prompt's fields of each request."""
        arguments = bound.arguments
        name = "params" if "params" in bound.signature.parameters else "sampling_params"
        params = arguments.get(name)
        if params is None and hasattr(llm, "get_default_sampling_params"):
            params = llm.get_default_sampling_params()
        if settings.logprobs and name == "sampling_params" and params is not None:
            params = arguments[name] = vllm_json.with_logprobs(params)
        self.bound = bound
        prompts: list[dict[str, Any]] = of_each(arguments)
        count = len(prompts)
        each = vllm_json.params_of(params, count)
        loras = vllm_json.params_of(arguments.get("lora_request"), count)
        config, version = getattr(llm, "model_config", None), sampler.version_of(llm)
        # `raw` or `processed`; `raw_logits` or `processed_logits` where its numbers are no logprobs.
        mode = getattr(config, "logprobs_mode", None)
        mode = mode.removesuffix("_logprobs") if isinstance(mode, str) else None
        versions = [getattr(lora, "lora_name", None) if version is None else version for lora in loras]
        facts = [{"logprobs_mode": mode, "policy_version": one} for one in versions]
        self.facts = [{name: value for name, value in one.items() if value is not None} for one in facts]
        self.sent = [one["prompt"] if isinstance(one.get("prompt"), list) else None for one in prompts]
        """The prompts that were sent as ids; None in place of the others."""
        requests = [
            {"model": getattr(config, "model", None), **prompt, **vllm_json.sampling_fields(one, lora)}
            for prompt, one, lora in zip(prompts, each, loras, strict=True)
        ]
        super().__init__(settings.calls, PROTOCOL, map(sampler.encoded, requests))


def _begun(
    llm: Any, settings: SamplerSettings, function: Any, of_each: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> _Run | None:
    """The run that begins; None where there is nothing to record."""
    # Looked up when it is called.
    return sampler.begun_with(lambda bound: _Run(llm, settings, of_each, bound), function, (llm, *args), kwargs)


def _named(base: Any, name: str) -> Any:
    """The method whose parameters have vLLM's names: vLLM's own, where a subclass of the user's passes ``*args`` on."""
    method = getattr(base, name)
    if not {"prompts", "prompt", "messages"}.isdisjoint(sampler.signature_of(method).parameters):
        return method
    kinds = (one for one in base.__mro__ if name in vars(one) and one.__module__.partition(".")[0] == "vllm")
    return next((vars(one)[name] for one in kinds), method)


def _methods(base: Any, settings: SamplerSettings) -> dict[str, Any]:
    """The methods of a recording ``LLM``: of those that its release has."""

    def recorded(
        name: str, of_each: Callable[[Mapping[str, Any]], Any], finish: Callable[[Any, _Run, Any], None]
    ) -> Any:
        """A method whose calls are recorded. ``finish``: called with the ``LLM``, the run and what the method gave."""
        method, named = getattr(base, name), _named(base, name)

        @functools.wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            run = _begun(self, settings, named, of_each, args, kwargs)
            if run is None:
                with guard.hidden_frame:
                    return method(self, *args, **kwargs)
            with run:
                found = method(*run.bound.args, **run.bound.kwargs)
            finish(self, run, found)
            return found

        return call

    def with_outputs(answer: Any) -> Callable[[Any, _Run, Any], None]:
        return lambda llm, run, outputs: run.answer(lambda: _answers(llm, run, outputs, answer))

    def wait_for_completion(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            outputs = base.wait_for_completion(self, *args, **kwargs)
        except BaseException as error:
            for queued in _queued.pop(self, {}).values():
                recorder.failed(queued.call, error)
            guard.hide_frame(error)
            raise
        _take(self, outputs)
        return outputs

    made: dict[str, Callable[[], Any]] = {
        "generate": lambda: recorded("generate", vllm_json.prompts_in, with_outputs(vllm_json.answer_of)),
        "chat": lambda: recorded("chat", vllm_json.conversations_in, with_outputs(vllm_json.answer_of)),
        "beam_search": lambda: recorded("beam_search", vllm_json.prompts_in, with_outputs(vllm_json.beams_of)),
        "enqueue": lambda: recorded("enqueue", vllm_json.prompts_in, _enqueue),
        "enqueue_chat": lambda: recorded("enqueue_chat", vllm_json.conversations_in, _enqueue),
        "wait_for_completion": lambda: functools.wraps(base.wait_for_completion)(wait_for_completion),
    }
    methods = {name: make() for name, make in made.items() if hasattr(base, name)}
    return {**methods, "__reduce_ex__": sampler.plain_copies(base)}


def _answers(llm: Any, run: _Run, outputs: Sequence[Any], answer: Any) -> list[dict[str, Any]]:
    # Requests that were enqueued before are finished, and returned, with those of this call.
    own = _take(llm, outputs)
    return [answer(*one) for one in zip(own, run.sent, run.facts, strict=True)]


def _enqueue(llm: Any, run: _Run, ids: Any) -> None:
    try:
        queued = map(_Queued, run.calls, run.sent, run.facts)
        # Of the ids that vLLM makes of its numbers (`7-1f00ba12`), outputs have the number alone.
        numbers = [str(one).partition("-")[0] for one in ids]
        _queued.setdefault(llm, {}).update(zip(numbers, queued, strict=True))
    except Exception as error:
        run.failed(error)
        guard.failed("enqueue", None, error)


def _take(llm: Any, outputs: Any) -> list[Any]:
    """Ends the calls that were enqueued, with their outputs. Returns the other outputs."""
    queued = _queued.get(llm)
    if not queued:
        return list(outputs)
    others = []
    for output in outputs:
        one = queued.pop(str(getattr(output, "request_id", None)), None)
        if one is None:
            others.append(output)
            continue
        body = None
        try:
            body = vllm_json.answer_of(output, one.sent, one.facts)
        except Exception as error:
            guard.failed("answer", one.call, error)
        finally:
            sampler.answered(one.call, body)
    return others


def _async_methods(base: Any, settings: SamplerSettings) -> dict[str, Any]:
    named = _named(base, "generate")

    @functools.wraps(base.generate)
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = _begun(self, settings, named, _one_prompt, args, kwargs)
        if run is None or run.calls[0] is None:
            return base.generate(self, *args, **kwargs)
        call = run.calls[0]
        kind = getattr(run.bound.arguments.get("sampling_params"), "output_kind", None)
        are_deltas = getattr(kind, "value", kind) == _DELTA
        deltas = vllm_json.Deltas(run.sent[0], run.facts[0], are_deltas=are_deltas)
        # The call begins here, in this context, wherever the outputs are read.
        return _stream(call, base.generate(*run.bound.args, **run.bound.kwargs), deltas, Ender(call))

    return {"generate": generate, "__reduce_ex__": sampler.plain_copies(base)}


def _one_prompt(arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
    prompt = arguments["prompt"]
    if hasattr(prompt, "__aiter__"):
        guard.warn_once(
            "vllm-input-stream",
            "AsyncLLM.generate() got a stream of inputs: its completions are recorded as one step, after the first "
            "prompt. Make a call for each input to get a step for each.",
        )
        return [{"stream": True}]
    return [{"stream": True, **vllm_json.prompt_fields(prompt)}]


async def _stream(call: Call, items: Any, deltas: vllm_json.Deltas, ender: Ender) -> AsyncIterator[Any]:
    """What vLLM's generator yields; ends the call with its last item. ``ender`` ends it if it never begins."""
    try:
        async for output in items:
            try:
                recorder.receive(call, sampler.encoded(deltas.next(output)) + b"\n")
            except Exception as error:
                guard.failed("receive", call, error)
            yield output
    except BaseException as error:
        # Where its reader closed it, or threw this in: vLLM aborts the request now, not when it is collected.
        await items.aclose()
        recorder.ended(call, error)
        raise
    recorder.finished(call)
    recorder.ended(call)
