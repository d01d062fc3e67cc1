"""Records what no request shows of litellm: answers from its cache, and answers that it discards.

Its calls are recorded below it, by the SDKs and the HTTP libraries. Nothing is imported; these functions are replaced:

- ``LLMCachingHandler._convert_cached_result_to_model_response``, which runs for every answer of the cache and
  for nothing else: a step with status ``cached``.
- ``_should_raise_content_policy_error`` and ``_should_raise_anthropic_refusal_error`` of its router, which decide that
  an answer is thrown away for a fallback's: its step becomes ``superseded``. Since 1.110 its core in Rust decides, and
  ``_Driver._blocked_error`` makes the exception for such an answer.
- ``litellm.utils.post_call_processing``, which raises for an answer that fails a rule or its JSON schema: the step
  holds the error, and is ``superseded`` where litellm then asks again.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

from rollout_trace import guard
from rollout_trace.data.model import Step
from rollout_trace.process.patches import Patches
from rollout_trace.record import program
from rollout_trace.record.frames import ModelFrame
from rollout_trace.record.scope import active
from rollout_trace.wire import decode

FRAMEWORK = "litellm"

_PROTOCOLS = {
    "completion": "openai.chat",
    "text_completion": "openai.completions",
    "responses": "openai.responses",
    "anthropic_messages": "anthropic.messages",
}
"""The shape of a cached answer, by the name of litellm's function; the asynchronous ones begin with ``a``."""
_SAMPLING = (
    "temperature", "top_p", "n", "max_tokens", "max_completion_tokens", "stop", "seed", "presence_penalty",
    "frequency_penalty", "logit_bias", "response_format", "tool_choice", "logprobs", "top_logprobs", "reasoning_effort",
)  # fmt: skip


def _convert(original: Callable[..., Any], handler: Any, *args: Any, **kwargs: Any) -> Any:
    # Before: the original changes what it is given.
    guard.run_all("cached", functools.partial(_cached, original, handler, args, kwargs))
    return original(handler, *args, **kwargs)


def _cached(original: Callable[..., Any], handler: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    given = inspect.signature(original).bind_partial(handler, *args, **kwargs).arguments
    protocol = _protocol(str(given.get("call_type")), given.get("cached_result"))
    # The hook of a framework above reports this call itself.
    if protocol is None or isinstance(active(), ModelFrame):
        return
    asked = _asked(handler.original_function, given)
    frame = _Frame(
        messages=asked.get("messages", asked.get("input", asked.get("prompt"))),
        tools=asked.get("tools"),
        model=given.get("model"),
        sampling={name: asked[name] for name in _SAMPLING if asked.get(name) is not None} or None,
        protocol=protocol,
    )
    answers = decode(protocol, None, json.dumps(given["cached_result"]).encode())
    # Not the frame's own id of the answer: by that, it would be joined with the call that the answer is from.
    frame.answered(*map(_answer, answers), cached=True)
    frame.end()


def _protocol(call_type: str, result: Any) -> str | None:
    """The protocol of a cached answer; None where it is none of a model's (embeddings, transcripts)."""
    if not isinstance(result, dict):
        return None
    # Answers of chat completions serve for responses too.
    if "choices" in result and call_type in ("responses", "aresponses"):
        return "openai.chat"
    return _PROTOCOLS.get(call_type, _PROTOCOLS.get(call_type.removeprefix("a")))


def _asked(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the caller, by name."""
    try:
        bound = inspect.signature(function).bind_partial(*given.get("args", ()), **given.get("kwargs", {}))
    except TypeError:
        return dict(given.get("kwargs", {}))
    asked = dict(bound.arguments)
    return {**asked.pop("kwargs", {}), **asked}


def _answer(step: Step) -> dict[str, Any]:
    # Ids and logprobs stay out: litellm's cache has no ids, and what it has of logprobs is no second sample.
    names = ("response_id", "completion", "finish_reason", "usage", "response_model", "extra")
    return {name: getattr(step, name) for name in names if getattr(step, name) is not None}


def _should_raise(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    is_thrown_away = original(*args, **kwargs)
    if is_thrown_away:
        given = inspect.signature(original).bind_partial
        guard.run_all("superseded", lambda: _superseded(given(*args, **kwargs).arguments.get("response")))
    return is_thrown_away


def _blocked_error(original: Callable[..., Any], driver: Any, *args: Any, **kwargs: Any) -> Any:
    guard.run_all("superseded", lambda: _superseded(driver._last_response))
    return original(driver, *args, **kwargs)


def _process(original: Callable[..., Any], original_response: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return original(original_response, *args, **kwargs)
    except Exception as error:
        options = kwargs.get("optional_params") or next((one for one in args if isinstance(one, dict)), {})
        guard.run_all("superseded", functools.partial(_refused, original_response, error, options))
        raise


def _superseded(response: Any) -> None:
    frame = _frame_of(response)
    frame.supersede()
    frame.end()


def _refused(response: Any, error: BaseException, options: Mapping[str, Any]) -> None:
    frame = _frame_of(response)
    frame.failed(error)
    # Of these classes, litellm's functions try errors again themselves.
    if options.get("num_retries") and any(kind.__name__ == "APIError" for kind in type(error).__mro__):
        frame.supersede()
    frame.end()


def _frame_of(response: Any) -> _Frame:
    """A frame for an answer that has been recorded, which is found by the provider's id."""
    frame = _Frame(is_seen=True)
    # Anthropic's messages are plain dicts.
    found = response.get("id") if isinstance(response, Mapping) else getattr(response, "id", None)
    frame.answered(response_id=found)
    return frame


class _Frame(ModelFrame):
    """A model call of litellm.

    Args:
        is_seen: whether its bytes are recorded: the frame only adds to their step, and never makes one.
        **facts: as for ``ModelFrame``.
    """

    def __init__(self, *, is_seen: bool = False, **facts: Any) -> None:
        self._is_seen = is_seen
        super().__init__(FRAMEWORK, **facts)

    def _enlist(self) -> None:
        if self.trajectory is None:
            self.trajectory = program.opened() if self._is_seen else program.of_call(None, self._started)
        super()._enlist()

    def steps(self) -> list[Step]:
        return [] if self._is_seen else super().steps()


_LATER = ("litellm.router_python_core", "litellm.router_rust")
"""Where litellm's router is since 1.109.2, and since 1.110."""
_CACHED = {"_convert_cached_result_to_model_response": _convert}
_DISCARDED = {
    "_should_raise_content_policy_error": _should_raise,
    "_should_raise_anthropic_refusal_error": _should_raise,
    "_blocked_error": _blocked_error,
}
_CHECKED = {"post_call_processing": _process}


def _replace(
    kind: str | None, functions: Mapping[str, Callable[..., Any]], missing: str, module: Any, patches: Patches
) -> None:
    """Replaces those functions that a class of a module has, or the module itself; warns where it has none.

    They have private names. Calls are recorded all the same.
    """
    owner = module if kind is None else getattr(module, kind, None)
    found = [name for name in functions if hasattr(owner, name)]
    for name in found:
        patches.wrap(owner, name, functions[name])
    if not found and not (kind == "Router" and any(map(find_spec, _LATER))):
        guard.warn_once(
            f"litellm:{missing}",
            f"this release of litellm has no {missing}: answers that litellm takes from its cache, or discards, are "
            "not marked as such in an instrumented process. Use litellm 1.110.2.",
        )


_replaced = functools.partial(functools.partial, _replace)
FRAMEWORKS: dict[str, Callable[[Any, Patches], None]] = {
    "litellm.caching.caching_handler": _replaced("LLMCachingHandler", _CACHED, *_CACHED),
    "litellm.router": _replaced("Router", _DISCARDED, "_should_raise_content_policy_error"),
    "litellm.router_python_core": _replaced("PythonCore", _DISCARDED, "PythonCore._blocked_error"),
    "litellm.router_rust.core": _replaced("_Driver", _DISCARDED, "_Driver._blocked_error"),
    "litellm.utils": _replaced(None, _CHECKED, *_CHECKED),
}
"""The modules to wait for, and what replaces their functions."""
