"""Token ids of a model that runs in this process: what ``transformers`` was given, and what it gave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollout_trace.integration import TokenIssue, Usage, guarded

_STILL_RUNNING = TokenIssue(
    code="ids_missing", message="the call ended before the local model had given its ids: closed early, or failed."
)


class Listening:
    """A local model during one call. The model itself stays as it is: others may train it."""

    def __init__(self, model: Any, facts: dict[str, Any], scores: bool) -> None:
        """``facts`` gets the fields of the call's step; ``scores`` asks the model for those of what it generates."""
        self._model = model
        self._told = facts
        self._scores = scores
        facts |= {"engine": "transformers", "token_issue": _STILL_RUNNING}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """As the model's; smolagents gets what it would have got."""
        asked = {**kwargs, "return_dict_in_generate": True, "output_scores": True} if self._scores else kwargs
        output = self._model.generate(*args, **asked)
        self._tell(kwargs, output)
        return output if asked is kwargs or kwargs.get("return_dict_in_generate") else output.sequences

    @guarded
    def _tell(self, asked: Mapping[str, Any], output: Any) -> None:
        self._told |= _facts(self._model, asked, output)


def _facts(model: Any, asked: Mapping[str, Any], output: Any) -> dict[str, Any]:
    """Fields of a step: ids, and logprobs where the scores were asked for. smolagents uses the first row alone."""
    prompt = asked["inputs"][0].tolist()
    completion = getattr(output, "sequences", output)[0].tolist()[len(prompt) :]
    facts = {
        "prompt_token_ids": prompt,
        "completion_token_ids": completion,
        "token_source": "engine",
        "token_issue": None,
        "finish_reason": _finish_reason(model, asked, completion),
        # While it streams, smolagents counts pieces of text.
        "usage": Usage(input=len(prompt), output=len(completion)),
    }
    scores = getattr(output, "scores", None)
    if scores is not None:
        # Of the distribution that was sampled from: after temperature, top-k, top-p, penalties.
        beams = getattr(output, "beam_indices", None)
        logprobs = model.compute_transition_scores(output.sequences, scores, beams, normalize_logits=True)
        facts |= {"logprobs": logprobs[0].tolist(), "logprobs_mode": "processed"}
    return facts


def _finish_reason(model: Any, asked: Mapping[str, Any], completion: list[int]) -> str:
    """As servers name it: ``stop`` after an end token or a stop sequence, ``length`` at the limit of tokens."""
    ends = asked.get("eos_token_id", getattr(model.generation_config, "eos_token_id", None))
    ends = ends if isinstance(ends, (list, tuple)) else [ends]
    is_full = len(completion) >= (asked.get("max_new_tokens") or float("inf"))
    return "length" if is_full and completion[-1] not in ends else "stop"
