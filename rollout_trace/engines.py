"""What each engine must be asked for, so that it sends token ids and logprobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class EngineProfile:
    """One engine: the body fields that a request of each protocol gets where the caller has not set them."""

    name: str
    ask: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


# vLLM 0.32: `logprobs` of a completions request counts alternatives; 0 gives the sampled token's own logprob.
_PROFILES = {
    "vllm": EngineProfile(
        "vllm",
        {
            "openai.chat": {"logprobs": True, "return_token_ids": True},
            "openai.completions": {"logprobs": 0, "return_token_ids": True},
        },
    ),
}


def profile(name: str | None) -> EngineProfile | None:
    """The profile of an engine; None for None.

    Raises:
        ValueError: no engine of that name is known.
    """
    if name is None:
        return None
    try:
        return _PROFILES[name]
    except (KeyError, TypeError):
        raise ValueError(
            f"engine={name!r} is not known; known: {', '.join(sorted(_PROFILES))}. "
            "engine=None asks the server for nothing."
        ) from None
