"""Settings of a request that changed the sampling distribution: a grammar, a truncation, a bias.

They are read from the request, since responses do not carry them. What a server adds itself (a model's
``generation_config.json``, an operator's setting) is not seen, save the defaults in the engine's profile.
"""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Any

from rollout_trace.engines.grammars import constrained, settings_of, temperature
from rollout_trace.engines.profiles import profile_of_step

if TYPE_CHECKING:
    from rollout_trace.data.model import Step

_ALL_TOKENS = 2**30
"""A ``top_k`` from this number on is no limit: SGLang uses it for "all tokens"."""

# `_BELOW`: a value from 0 to below this one truncates. `_ABOVE`: a value above 0 does. Engines use 0 or -1 for "off".
_BELOW = {"top_p": 1, "typical_p": 1, "typ_p": 1, "tfs_z": 1}
_ABOVE = ("top_k", "min_p", "top_a", "top_n_sigma", "xtc_probability", "epsilon_cutoff", "eta_cutoff", "min_tokens",
          "min_new_tokens")  # fmt: skip
_LISTS = ("allowed_token_ids", "bad_words")
_NEUTRAL = {
    "presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1, "repeat_penalty": 1, "dry_multiplier": 0,
    "mirostat": 0, "dynatemp_range": 0,
}  # fmt: skip


def truncated(step: Step) -> str | None:
    """Settings that removed tokens from the distribution, such as ``top_p 0.9, top_k 20``; None where none did."""
    if temperature(step) == 0:
        # Greedy: no truncation removes the likeliest token.
        return None
    merged: dict[str, Any] = {**profile_of_step(step.engine).sampling}
    for settings in settings_of(step):
        merged.update({name: value for name, value in settings.items() if value is not None})
    texts = [
        f"{name} {merged[name]}" for name, whole in _BELOW.items() if 0 <= _number(merged.get(name), whole) < whole
    ]
    texts += [f"{name} {merged[name]}" for name in _ABOVE if 0 < _number(merged.get(name), 0) < _ALL_TOKENS]
    texts += [name for name in _LISTS if merged.get(name)]
    return ", ".join(texts) or None


def biased(step: Step) -> str | None:
    """Settings that changed probabilities of tokens: a bias, penalties, a beam search; None where there were none."""
    texts = []
    for settings in settings_of(step):
        texts += [name for name in ("logit_bias", "use_beam_search") if settings.get(name)]
        texts += [
            f"{name} {settings[name]}" for name, none in _NEUTRAL.items() if _number(settings.get(name), none) != none
        ]
    return ", ".join(dict.fromkeys(texts)) or None


def _number(value: Any, otherwise: float) -> float:
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else otherwise


__all__ = ["biased", "constrained", "temperature", "truncated"]
