"""Token ids and logprobs of a model that runs in this process, from the inputs and outputs of its ``generate``."""

from __future__ import annotations

from typing import Any

from rollout_trace.integration import TokenIssue, TransformersGeneration, Usage, guarded

_STILL_RUNNING = TokenIssue(
    code="ids_missing", message="the call failed or was closed before the local model gave its token ids."
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
        generation = self._begun(args, kwargs)
        if generation is None:
            return self._model.generate(*args, **kwargs)
        output = self._model.generate(*generation.args, **generation.kwargs)
        self._add_facts(generation, output)
        return generation.result(output)

    @guarded
    def _begun(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TransformersGeneration:
        return TransformersGeneration(self._model, args, kwargs, logprobs=self._scores)

    @guarded
    def _add_facts(self, generation: TransformersGeneration, output: Any) -> None:
        """Fields of the step. Of the first row, the only one that smolagents uses."""
        rows, mode = generation.rows(output)
        prompt, completion = rows[0].prompt_token_ids, rows[0].completion_token_ids
        self._facts |= {
            "prompt_token_ids": prompt,
            "completion_token_ids": completion,
            "token_source": "engine",
            "token_issue": None,
            "finish_reason": rows[0].finish_reason,
            # smolagents' own count, for a stream, is one of pieces of text.
            "usage": Usage(input=None if prompt is None else len(prompt), output=len(completion)),
            "logprobs": rows[0].logprobs,
            "logprobs_mode": mode,
        }
