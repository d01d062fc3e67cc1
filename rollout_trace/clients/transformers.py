"""``rt.wrap_transformers``: recording for ``generate`` of models of transformers, in the process that samples.

Neither transformers nor torch is imported. Overridden is ``generate`` alone.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rollout_trace import guard
from rollout_trace.clients import sampler
from rollout_trace.clients.sampler import Calls, PolicyVersion, SamplerSettings
from rollout_trace.clients.transformers_rows import TransformersGeneration
from rollout_trace.record.call import MAX_CALL_BYTES
from rollout_trace.wire.profiles import EngineProfile

if TYPE_CHECKING:
    from rollout_trace.data.model import LogprobsMode

M = TypeVar("M")

PROTOCOL: Final = "transformers.generate"
_ENGINE: Final = EngineProfile("transformers")


def wrap_transformers(
    model: M,
    *,
    logprobs: bool = False,
    policy_version: PolicyVersion = None,
    logprobs_mode: LogprobsMode | None = None,
    keep_bytes: bool = False,
    max_call_bytes: int = MAX_CALL_BYTES,
) -> M:
    """Records every call of ``generate`` of a model of transformers. Returns the same object.

    Each row of the input is a call of its own, and each sequence returned for it a step. Pads are no tokens: prompts
    are without those that the attention mask leaves out, completions end with their end token.

    Args:
        model: a model that generates, such as ``AutoModelForCausalLM`` gives, or one of peft around it.
        logprobs: keep the scores while tokens are sampled (``output_scores``), for logprobs, where the caller does not.
            What ``generate`` returns does not have them. They take a number for each token of the vocabulary and each
            token that is sampled.
        policy_version: version of the weights, or a function that returns it when a call begins.
        logprobs_mode: what the logprobs are of; by default ``processed``, the distribution that was sampled from, or
            ``raw`` where the caller kept logits alone.
        keep_bytes: keep what was recorded of request and answer on the steps.
        max_call_bytes: most bytes that are kept of one request, and of one answer.

    Wrapping again only changes the settings. ``rt.unwrap(model)`` undoes it. A copy of the model is not wrapped, nor is
    what a pickle of it gives.

    Raises:
        TypeError: not a model that generates, or an argument of the wrong type.
        ValueError: ``logprobs_mode`` is unknown, or ``max_call_bytes`` is below 1.
    """
    kind = sampler.recording.plain(type(model))
    if not callable(getattr(kind, "generate", None)) or not hasattr(model, "generation_config"):
        raise TypeError(f"wrap_transformers() needs a model of transformers with generate(), got {model!r:.80}.")
    settings = sampler.settings_for(_ENGINE, keep_bytes, max_call_bytes, logprobs_mode, logprobs)
    sampler.put_on(model, settings, _methods, sampler.check_version(policy_version))
    return model


def _methods(base: Any, settings: SamplerSettings) -> dict[str, Any]:
    @functools.wraps(base.generate)
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = sampler.begun(lambda: _Run(self, settings, args, kwargs))
        if run is None:
            with guard.hidden_frame:
                return base.generate(self, *args, **kwargs)
        with run:
            output = base.generate(self, *run.generation.args, **run.generation.kwargs)
        run.answer(lambda: run.answers(output))
        return run.result(output)

    return {"generate": generate, "__reduce_ex__": sampler.plain_copies(base)}


class _Run(Calls):
    """One call of ``generate``: a call for each row of the input."""

    __slots__ = ("_version", "generation")

    def __init__(self, model: Any, settings: SamplerSettings, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.generation = generation = TransformersGeneration(model, args, kwargs, logprobs=settings.logprobs)
        version = sampler.version_of(model)
        self._version = {} if version is None else {"policy_version": version}
        name = getattr(getattr(model, "config", None), "_name_or_path", None) or type(model).__name__
        shared = {"model": name, **generation.settings()}
        name = "encoder_prompt" if generation.is_encoder_decoder else "prompt"
        requests = [shared if ids is None else {name: ids, **shared} for ids in generation.prompts]
        super().__init__(settings.calls, PROTOCOL, map(sampler.encoded, requests))

    def result(self, output: Any) -> Any:
        """What the caller gets."""
        try:
            return self.generation.result(output)
        except Exception as error:
            guard.failed("result", self.calls[0], error)
            return output

    def answers(self, output: Any) -> list[dict[str, Any]]:
        """The answer of each row of the input."""
        rows, mode = self.generation.rows(output)
        head = self._version if mode is None else {**self._version, "logprobs_mode": mode}
        answers: list[dict[str, Any]] = [{**head, "choices": []} for _ in self.calls]
        for row in rows:
            answer = answers[row.prompt]
            if row.prompt_token_ids is not None and row.prompt_token_ids != self.generation.prompts[row.prompt]:
                answer["prompt_token_ids"] = row.prompt_token_ids
            choice = {"index": len(answer["choices"]), "token_ids": row.completion_token_ids, "logprobs": row.logprobs}
            answer["choices"].append({**choice, "finish_reason": row.finish_reason, "unconfirmed": row.unconfirmed})
        return answers
