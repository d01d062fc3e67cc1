"""``rt.Engine``: an engine, and what its answers are asked for beside token ids and logprobs."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from operator import index
from typing import TYPE_CHECKING, Any

from rollout_trace._field_docs import document_fields
from rollout_trace.wire.profiles import profile

if TYPE_CHECKING:
    from rollout_trace.wire.profiles import EngineName, EngineProfile

_MOST_ALTERNATIVES = 20
"""OpenAI's limit for ``top_logprobs``, and the default of ``--max-logprobs`` of vLLM."""


@document_fields
@dataclass(frozen=True, slots=True)
class Engine:
    """The server behind a client, and what is asked of it beside token ids and logprobs.

    For ``engine=`` wherever a name is taken: ``rt.wrap_openai(client, engine=rt.Engine("vllm", top_logprobs=5))``.
    The name alone asks for ids and logprobs. Which engine answers which option, in which form of call, is in the
    documentation of engines; what an answer lacks is in ``Step.extra_issues``.

    Raises:
        TypeError: an option is of another type.
        ValueError: the engine is unknown, or a number is out of its range.
    """

    name: EngineName
    """Name of the engine, or ``auto``."""
    _: KW_ONLY
    routed_experts: bool = False
    """``Step.routed_experts``. vLLM and SGLang send them if the server was started with
    ``--enable-return-routed-experts``."""
    prompt_logprobs: int | None = None
    """``Step.prompt_logprobs``: 0 for the prompt's own tokens, k for the k likeliest at each position too
    (``Step.prompt_top_tokens``), -1 for the whole vocabulary; None asks for none. vLLM does not use its prefix cache
    for such a call."""
    top_logprobs: int | None = None
    """``Step.top_tokens``: the number of likeliest tokens at each position of the completion, 0 to 20, or -1 for the
    whole vocabulary; None asks for none. 0 gives the logprobs of the sampled tokens alone. vLLM's k include the sampled
    token, save in completions, where it is one more if it is not among them."""
    sampling_mask: bool = False
    """``Step.sampling_mask``. vLLM sends it from ``/inference/v1/generate`` alone, if the server was started with
    ``--return-sampling-mask``; SGLang unstreamed, or from ``/generate``."""
    show_added: bool = False
    """Hands on the chunks of a stream that come only because of fields that were added to the request: deltas with
    nothing in them but ids and logprobs. Without it they are recorded alone."""

    def __post_init__(self) -> None:
        if profile(self.name) is None:
            raise ValueError("Engine(None): expected the name of an engine, or 'auto', which detects it.")
        for option in ("routed_experts", "sampling_mask", "show_added"):
            if not isinstance(getattr(self, option), bool):
                raise TypeError(f"Engine({option}={getattr(self, option)!r:.80}): expected True or False.")
        object.__setattr__(self, "prompt_logprobs", _count("prompt_logprobs", self.prompt_logprobs, None))
        object.__setattr__(self, "top_logprobs", _count("top_logprobs", self.top_logprobs, _MOST_ALTERNATIVES))


def resolve(engine: str | Engine | None) -> tuple[EngineProfile | None, Engine | None]:
    """The profile for an ``engine`` argument, and its options; no options where none is set.

    Raises:
        ValueError: no engine of that name is known.
    """
    if not isinstance(engine, Engine):
        return profile(engine), None
    return profile(engine.name), None if engine == Engine(engine.name) else engine


def _count(option: str, value: Any, most: int | None) -> int | None:
    if value is None:
        return None
    allowed = f"{'a whole number from 0' if most is None else f'0 to {most}'}, -1 for the whole vocabulary, or None"
    try:
        number = index(value) if not isinstance(value, bool) else None
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"Engine({option}={value!r:.80}): expected {allowed}.")
    if number < -1 or (most is not None and number > most):
        raise ValueError(f"Engine({option}={number}): expected {allowed}.")
    return number


__all__ = ["Engine", "resolve"]
