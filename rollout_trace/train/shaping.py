"""Settings of a request that changed the sampling distribution: a grammar, a truncation, a bias.

They are read from the request, since responses do not carry them. What a server adds itself (a model's
``generation_config.json``, an operator's setting) is not seen, save the defaults in the engine's profile.
"""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Any

from rollout_trace.wire.grammars import restricted as constrained
from rollout_trace.wire.grammars import settings_of, temperature
from rollout_trace.wire.profiles import profile_of_step

if TYPE_CHECKING:
    from rollout_trace.data.model import Step

_ALL_TOKENS = 2**30
"""A ``top_k`` from this number on is no limit: SGLang uses it for "all tokens"."""

# `_BELOW`: a value from 0 to below this one truncates. `_ABOVE`: a value above 0 does. Engines use 0 or -1 for "off".
_BELOW = {"top_p": 1, "typical_p": 1, "typ_p": 1, "tfs_z": 1}
_ABOVE = ("top_k", "min_p", "top_a", "top_n_sigma", "xtc_probability", "epsilon_cutoff", "eta_cutoff", "min_tokens",
          "min_new_tokens")  # fmt: skip
_LISTS = ("allowed_token_ids", "bad_words", "bad_words_ids", "suppress_tokens", "prefix_allowed_tokens_fn")
_NEUTRAL = {
    "presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1, "repeat_penalty": 1, "dry_multiplier": 0,
    "mirostat": 0, "dynatemp_range": 0, "no_repeat_ngram_size": 0,
}  # fmt: skip

_TRUNCATING = frozenset((*_BELOW, *_ABOVE, *_LISTS))
_GIVEN = ("logit_bias", "sequence_bias", "use_beam_search", "logits_processor")
_BIASING = frozenset((*_GIVEN, *_NEUTRAL))

_MASK = "the ids that could be sampled are in sampling_mask, and a trainer can renormalise over Sequence.sampling_mask"
_REMEDIES = {
    "allowed_token_ids": "set the trainer's logits of all other ids to minus infinity",
    "bad_words": "set the trainer's logits of the banned ids to minus infinity",
    "logit_bias": "add the same bias to the trainer's logits",
    "use_beam_search": "leave these steps out: the answer was not sampled token by token",
    "logits_processor": "leave these steps out: code of the caller's changed the logits",
    "min_tokens": "set the trainer's logits of the stop tokens to minus infinity at the first positions",
}
_CUT = (
    "set top_p=1, top_k=-1 and min_p=0 in requests, or record the sampling mask (rt.Engine(..., sampling_mask=True)) "
    "and renormalise over it"
)
_LEAVE_OUT = 'leave them out with sequences(constrained="drop"), or record the sampling mask and renormalise over it'
_PENALTY = "apply the same penalties to the trainer's logits, from the ids before each token"


def remedy(step: Step, code: str, settings: str) -> str:
    """Says what a trainer can do about the settings of a finding, as a phrase.

    Args:
        code: ``constrained_sampling``, ``distribution_truncated`` or ``distribution_biased``.
        settings: the settings, as ``constrained``, ``truncated`` or ``biased`` return them.
    """
    if code != "distribution_biased" and step.sampling_mask is not None:
        return _MASK
    if code == "constrained_sampling":
        return _LEAVE_OUT
    names = [one.partition(" ")[0] for one in settings.split(", ")]
    otherwise = _PENALTY if code == "distribution_biased" else _CUT
    return "; ".join(dict.fromkeys(_REMEDIES.get(name, otherwise) for name in names))


def truncated(step: Step) -> str | None:
    """Settings that removed tokens from the distribution, such as ``top_p 0.9, top_k 20``; None where none did."""
    if temperature(step) == 0:
        # Greedy: no truncation removes the likeliest token.
        return None
    merged: dict[str, Any] = {**profile_of_step(step.engine).sampling}
    for settings in settings_of(step):
        merged.update({name: value for name, value in settings.items() if value is not None})
    if _TRUNCATING.isdisjoint(merged):
        return None
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
        if _BIASING.isdisjoint(settings):
            continue
        texts += [name for name in _GIVEN if settings.get(name)]
        texts += [
            f"{name} {settings[name]}" for name, none in _NEUTRAL.items() if _number(settings.get(name), none) != none
        ]
    return ", ".join(dict.fromkeys(texts)) or None


def _number(value: Any, otherwise: float) -> float:
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else otherwise


__all__ = ["biased", "constrained", "remedy", "temperature", "truncated"]
