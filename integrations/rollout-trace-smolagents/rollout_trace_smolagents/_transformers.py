"""Token ids and logprobs of a model that runs in this process, from the inputs and outputs of its ``generate``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollout_trace.integration import TokenIssue, Usage, guarded

_STILL_RUNNING = TokenIssue(
    code="ids_missing", message="the call ended before the local model had given its ids: closed early, or failed."
)


class RecordingModel:
    """A local model during one call. A proxy, so that the model itself is unchanged: others may train it."""

    def __init__(self, model: Any, facts: dict[str, Any], scores: bool) -> None:
        """``facts``: receives the fields of the call's step. ``scores``: whether to request the tokens' scores."""
        self._model = model
        self._facts = facts
        self._scores = scores
        facts |= {"engine": "transformers", "token_issue": _STILL_RUNNING}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """The model's ``generate``; returns what it would have returned without scores."""
        arguments = {**kwargs, "return_dict_in_generate": True, "output_scores": True} if self._scores else kwargs
        output = self._model.generate(*args, **arguments)
        self._add_facts(kwargs, output)
        return output if arguments is kwargs or kwargs.get("return_dict_in_generate") else output.sequences

    @guarded
    def _add_facts(self, arguments: Mapping[str, Any], output: Any) -> None:
        self._facts |= _step_fields(self._model, arguments, output)


def _step_fields(model: Any, arguments: Mapping[str, Any], output: Any) -> dict[str, Any]:
    """Fields of a step: ids, and logprobs if there are scores. Of the first row, the only one that smolagents uses."""
    prompt = arguments["inputs"][0].tolist()
    completion = getattr(output, "sequences", output)[0].tolist()[len(prompt) :]
    facts = {
        "prompt_token_ids": prompt,
        "completion_token_ids": completion,
        "token_source": "engine",
        "token_issue": None,
        "finish_reason": _finish_reason(model, arguments, completion),
        # smolagents' own count, for a stream, is one of pieces of text.
        "usage": Usage(input=len(prompt), output=len(completion)),
    }
    scores = getattr(output, "scores", None)
    if scores is not None:
        # Logprobs of the distribution that was sampled from: after temperature, top-k, top-p, penalties.
        beams = getattr(output, "beam_indices", None)
        logprobs = model.compute_transition_scores(output.sequences, scores, beams, normalize_logits=True)
        facts |= {"logprobs": logprobs[0].tolist(), "logprobs_mode": "processed"}
    return facts


def _finish_reason(model: Any, arguments: Mapping[str, Any], completion: list[int]) -> str:
    """``length`` at the limit of tokens, else ``stop``: after an end token or a stop sequence."""
    ends = arguments.get("eos_token_id", getattr(model.generation_config, "eos_token_id", None))
    ends = ends if isinstance(ends, (list, tuple)) else [ends]
    is_full = len(completion) >= (arguments.get("max_new_tokens") or float("inf"))
    return "length" if is_full and completion[-1] not in ends else "stop"
