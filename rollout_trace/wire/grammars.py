"""Grammars of a request: what restricted the next token, and the settings that they are read from.

They are read from the request, since responses do not carry them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any

from rollout_trace.data.model import CUT_OFF, shared
from rollout_trace.wire.profiles import profile_of_step, profiles

if TYPE_CHECKING:
    from rollout_trace.data.model import Step

_GRAMMARS = frozenset().union(*(one.grammars or () for one in profiles()))
"""Request fields that are a grammar for at least one engine; the others ignore them. An unknown engine may be any."""
_ASKS = _GRAMMARS | {"sampling_params", "tool_choice"}
"""Fields without which a request that has no tools has no grammar."""
_DISPLAY_NAMES = {"text": "text.format"}
_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
"""The keys of ``structured_outputs`` that set a grammar; the others are options."""


def constrained(step: Step) -> str | None:
    """The grammars that restricted the next token, joined by commas: ``required tool``, ``response_format``, ...

    None where there was none. For an unknown engine, every field that is a grammar for some engine counts.
    """
    if shared(step, "tools") is None and (type(step.sampling) is dict and _ASKS.isdisjoint(step.sampling)):
        return None
    grammars = [name for settings in settings_of(step) for name in _grammars(settings, step.engine)]
    grammars.extend(_tool_grammars(step))
    return ", ".join(dict.fromkeys(grammars)) or None


def restricted(step: Step) -> str | None:
    """``constrained`` of a step whose logprobs are known: where they are ``constrained``, and the request names no
    grammar, ``not named in the request``."""
    return constrained(step) or ("not named in the request" if step.logprobs_mode == "constrained" else None)


def temperature(step: Step) -> Real | None:
    """The requested temperature, at the top level or in ``sampling_params``; None where it is absent or no number."""
    for settings in settings_of(step):
        value = settings.get("temperature")
        if value is not None:
            return value if isinstance(value, Real) and not isinstance(value, bool) else None
    return None


def settings_of(step: Step) -> Iterator[Mapping[str, Any]]:
    """The request's fields, then those in ``sampling_params`` of engines' own endpoints: one mapping, or a list of them
    for several prompts."""
    sampling = step.sampling
    # `Mapping` takes long to look at, and is asked for every step several times.
    if type(sampling) is not dict and not isinstance(sampling, Mapping):
        return
    yield sampling
    inner = sampling.get("sampling_params")
    if inner is None:
        return
    for settings in inner if isinstance(inner, list) else (inner,):
        if isinstance(settings, Mapping):
            yield settings


def _grammars(settings: Mapping[str, Any], engine: str | None) -> Iterator[str]:
    # None for an engine whose fields are not known: any may be a grammar to it.
    recognized = profile_of_step(engine).grammars
    for name in [name for name in settings if name in _GRAMMARS]:
        value = settings[name]
        if name == "text":
            value = value.get("format") if isinstance(value, Mapping) else None
        if name in ("text", "response_format"):
            if isinstance(value, Mapping) and value.get("type", "text") != "text":
                yield _DISPLAY_NAMES.get(name, name)
            continue
        if isinstance(value, Mapping) and name == "structured_outputs":
            value = any(value.get(kind) not in (None, False) for kind in _KINDS)
        if value not in (None, False, "") and (recognized is None or name in recognized):
            yield name


def _tool_grammars(step: Step) -> Iterator[str]:
    sampling = step.sampling
    choice = sampling.get("tool_choice") if type(sampling) is dict or isinstance(sampling, Mapping) else None
    forced = _forced(choice)
    engine = profile_of_step(step.engine)
    if forced is not None and not (forced == "named tool" and engine.ignores_named_tool):
        yield forced
        return
    answer = step.completion
    if choice == "none" or answer is None or not step.tools:
        return
    # With a free choice the grammar starts at the call: an answer of text alone was not restricted.
    if engine.constrains_tool_calls:
        if answer.tool_calls:
            yield "tool calls"
    # An answer that was cut off may have been inside a call, which is then not among its calls.
    elif (answer.tool_calls or step.finish_reason in CUT_OFF) and any(map(_is_strict, step.tools)):
        yield "strict tools"


def _forced(choice: Any) -> str | None:
    """The call that a ``tool_choice`` forces, in chat's, Responses' or Anthropic's shape; None for a free choice."""
    if isinstance(choice, str):
        return "required tool" if choice in ("required", "any") else None
    if not isinstance(choice, Mapping):
        return None
    kind = choice.get("type")
    if kind == "allowed_tools":
        allowed = choice.get("allowed_tools")
        return _forced((allowed if isinstance(allowed, Mapping) else choice).get("mode"))
    if kind == "any":
        return "required tool"
    return "named tool" if kind in ("function", "custom", "tool") else None


def _is_strict(tool: Any) -> bool:
    if not isinstance(tool, Mapping):
        return False
    function = tool.get("function")
    return tool.get("strict") is True or (isinstance(function, Mapping) and function.get("strict") is True)
