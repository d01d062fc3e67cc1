"""Stand-ins for vLLM's objects, which return outputs that a real engine gave (``tests/live_engines/llm_program.py``).

The classes have vLLM's names, modules and signatures of 0.32, and of what is inside only what callers see.
"""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

RECORDED: dict[str, Any] = json.loads((Path(__file__).parents[2] / "data" / "vllm_outputs.json").read_text())


@dataclass
class Logprob:
    """Of one token at one position."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
class WeightVersionSpan:
    """Which weights sampled which tokens."""

    version: str
    start: int
    end: int


@dataclass
class SamplingParams:
    """The parameters that the tests set."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int | None = 16
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    logit_bias: dict[int, float] | None = None
    structured_outputs: Any = None
    output_kind: int = 0
    _eos_token_id: int | None = None


@dataclass
class LoRARequest:
    """A LoRA that is loaded for a request."""

    lora_name: str
    lora_int_id: int = 1
    lora_path: str = "/lora"


def scores(rows: Any) -> Any:
    """Logprobs by position, as vLLM has them."""
    if rows is None:
        return None
    return [None if row is None else {int(name): Logprob(**one) for name, one in row.items()} for row in rows]


def output(plain: Any) -> Any:
    """A ``RequestOutput`` from its fields as JSON."""
    made = SimpleNamespace(**{**plain, "prompt_logprobs": scores(plain["prompt_logprobs"])})
    made.outputs = [completion(one) for one in plain["outputs"]]
    return made


def completion(plain: Any) -> Any:
    """A ``CompletionOutput`` from its fields as JSON."""
    spans = plain["weight_versions"]
    own = {"logprobs": scores(plain["logprobs"]), "token_ids": list(plain["token_ids"])}
    return SimpleNamespace(
        **{**plain, **own, "weight_versions": spans and [WeightVersionSpan(**span) for span in spans]}
    )


def outputs(name: str) -> list[Any]:
    """Those that were recorded under a name; new objects each time."""
    return [output(copy.deepcopy(one)) for one in RECORDED[name]]


@dataclass(eq=False)
class LLM:
    """Returns the outputs that it is given, or raises."""

    answers: list[Any] = field(default_factory=list)
    error: BaseException | None = None
    model_config: Any = field(default_factory=lambda: SimpleNamespace(model="tiny", logprobs_mode="raw_logprobs"))
    asked: list[Any] = field(default_factory=list)
    """The sampling parameters of each call, as they came in."""

    def get_default_sampling_params(self) -> SamplingParams:
        """Those of the model."""
        return SamplingParams(temperature=0.6)

    def generate(
        self,
        prompts: Any,
        sampling_params: Any = None,
        *,
        use_tqdm: bool = True,
        lora_request: Any = None,
        priority: Any = None,
    ) -> list[Any]:
        """The outputs of prompts."""
        return self._run(sampling_params)

    def chat(
        self,
        messages: Any,
        sampling_params: Any = None,
        use_tqdm: bool = True,
        lora_request: Any = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Any = None,
        chat_template_kwargs: Any = None,
    ) -> list[Any]:
        """The outputs of conversations; by ``generate``, as in older releases."""
        return self.generate([""] * len(self.answers), sampling_params)

    def enqueue(self, prompts: Sequence[Any], sampling_params: Any = None) -> list[str]:
        """Ids of requests, as vLLM makes them of its numbers."""
        return [f"{one.request_id}-0badc0de" for one in self.answers]

    def wait_for_completion(self, output_type: Any = None, *, use_tqdm: bool = True) -> list[Any]:
        """The outputs of what was enqueued."""
        return self._run(None)

    def _run(self, params: Any) -> list[Any]:
        self.asked.append(params)
        if self.error is not None:
            raise self.error
        return self.answers


LLM.__module__ = "vllm.entrypoints.llm"


class AsyncLLM:
    """Yields the outputs that it is given, then raises the error, if it has one."""

    def __init__(self, answers: list[Any], error: BaseException | None = None) -> None:
        self.answers, self.error = answers, error
        self.model_config = SimpleNamespace(model="tiny", logprobs_mode="processed_logprobs")
        self.closed = 0

    async def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, *, lora_request: Any = None
    ) -> AsyncIterator[Any]:
        """The outputs of a prompt."""
        try:
            for one in self.answers:
                yield one
            if self.error is not None:
                raise self.error
        finally:
            self.closed += 1


AsyncLLM.__module__ = "vllm.v1.engine.async_llm"
