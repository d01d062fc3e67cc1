"""What shaped the sampling of a step beside the model, as its request says: a grammar, a truncation, a bias.

No answer says so. What a server does on its own (a model's ``generation_config.json``, a setting of the operator) is
not seen, save the defaults that are known of an engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any

from rollout_trace.data.model import CUT_OFF
from rollout_trace.engines.profiles import profile_of_step, profiles

if TYPE_CHECKING:
    from rollout_trace.data.model import Step

_ALL_TOKENS = 2**30
"""A ``top_k`` from here on is no limit: SGLang writes it for none."""

_GRAMMARS = frozenset().union(*(one.grammars or () for one in profiles()))
"""Fields that are a grammar to some engine. The others ignore them; an engine that is not known may be any."""
_SHOWN = {"text": "text.format"}
_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
"""What ``structured_outputs`` holds beside its options."""

# A value that leaves the distribution whole; any other on the far side of it truncates. Engines write 0 or -1 for none.
_BELOW = {"top_p": 1, "typical_p": 1, "typ_p": 1, "tfs_z": 1}
_ABOVE = ("top_k", "min_p", "top_a", "top_n_sigma", "xtc_probability", "epsilon_cutoff", "eta_cutoff", "min_tokens",
          "min_new_tokens")  # fmt: skip
_LISTS = ("allowed_token_ids", "bad_words")
_NEUTRAL = {
    "presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1, "repeat_penalty": 1, "dry_multiplier": 0,
    "mirostat": 0, "dynatemp_range": 0,
}  # fmt: skip


def constrained(step: Step) -> str | None:
    """Which grammar decided what tokens could follow: ``required tool``, ``response_format``, ...; None where none did.

    Of two, both. Where the engine is not known, what any engine takes for a grammar counts.
    """
    found = [name for asked in _settings(step) for name in _grammars(asked, step.engine)]
    found.extend(_tools(step))
    return ", ".join(dict.fromkeys(found)) or None


def truncated(step: Step) -> str | None:
    """Settings that took tokens out of the distribution, such as ``top_p 0.9, top_k 20``; None where none did."""
    if temperature(step) == 0:
        # Greedy: the likeliest token is in every truncation.
        return None
    given: dict[str, Any] = {**profile_of_step(step.engine).sampling}
    for asked in _settings(step):
        given.update({name: value for name, value in asked.items() if value is not None})
    found = [f"{name} {given[name]}" for name, whole in _BELOW.items() if 0 <= _number(given.get(name), whole) < whole]
    found += [f"{name} {given[name]}" for name in _ABOVE if 0 < _number(given.get(name), 0) < _ALL_TOKENS]
    found += [name for name in _LISTS if given.get(name)]
    return ", ".join(found) or None


def biased(step: Step) -> str | None:
    """Settings that made tokens more or less likely than the model has them: a bias, penalties, a beam search."""
    found = []
    for asked in _settings(step):
        found += [name for name in ("logit_bias", "use_beam_search") if asked.get(name)]
        found += [f"{name} {asked[name]}" for name, none in _NEUTRAL.items() if _number(asked.get(name), none) != none]
    return ", ".join(dict.fromkeys(found)) or None


def temperature(step: Step) -> Real | None:
    """The temperature that was asked for; engines' own endpoints take it inside ``sampling_params``."""
    for asked in _settings(step):
        value = asked.get("temperature")
        if value is not None:
            return value if isinstance(value, Real) and not isinstance(value, bool) else None
    return None


def _settings(step: Step) -> Iterator[Mapping[str, Any]]:
    """The request's fields, and those that engines' own endpoints take inside ``sampling_params``: of one prompt, or a
    list for several."""
    if not isinstance(step.sampling, Mapping):
        return
    yield step.sampling
    inner = step.sampling.get("sampling_params")
    for asked in inner if isinstance(inner, list) else (inner,):
        if isinstance(asked, Mapping):
            yield asked


def _grammars(asked: Mapping[str, Any], engine: str | None) -> Iterator[str]:
    read = profile_of_step(engine).grammars
    for name in [name for name in asked if name in _GRAMMARS]:
        given = asked[name]
        if name == "text":
            given = given.get("format") if isinstance(given, Mapping) else None
        if name in ("text", "response_format"):
            if isinstance(given, Mapping) and given.get("type", "text") != "text":
                yield _SHOWN.get(name, name)
            continue
        if isinstance(given, Mapping) and name == "structured_outputs":
            given = any(given.get(kind) not in (None, False) for kind in _KINDS)
        if given not in (None, False, "") and (read is None or name in read):
            yield name


def _tools(step: Step) -> Iterator[str]:
    choice = (step.sampling or {}).get("tool_choice") if isinstance(step.sampling, Mapping) else None
    forced = _forced(choice)
    engine = profile_of_step(step.engine)
    if forced is not None and not (forced == "named tool" and engine.ignores_named_tool):
        yield forced
        return
    answer = step.completion
    if choice == "none" or answer is None or not step.tools:
        return
    # Where the model may choose, the grammar begins with the call: text is free.
    if engine.constrains_tool_calls:
        if answer.tool_calls:
            yield "tool calls"
    elif (answer.tool_calls or step.finish_reason in CUT_OFF) and any(map(_is_strict, step.tools)):
        yield "strict tools"


def _forced(choice: Any) -> str | None:
    """What a ``tool_choice`` forces, in chat's, Responses' and Anthropic's shape."""
    if isinstance(choice, str):
        return "required tool" if choice in ("required", "any") else None
    if not isinstance(choice, Mapping):
        return None
    kind = choice.get("type")
    if kind == "allowed_tools":
        held = choice.get("allowed_tools")
        return _forced((held if isinstance(held, Mapping) else choice).get("mode"))
    if kind == "any":
        return "required tool"
    return "named tool" if kind in ("function", "custom", "tool") else None


def _is_strict(tool: Any) -> bool:
    if not isinstance(tool, Mapping):
        return False
    function = tool.get("function")
    return tool.get("strict") is True or (isinstance(function, Mapping) and function.get("strict") is True)


def _number(value: Any, otherwise: float) -> float:
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else otherwise
