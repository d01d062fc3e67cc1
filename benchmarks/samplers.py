"""What recording costs a sampler in the process: one prompt, 500 sampled tokens with logprobs.

    python benchmarks/samplers.py

The samplers return an answer at once, of the shape that vLLM and Tinker return; measured is the time that a call of
theirs takes more when it is wrapped, on the caller's thread, in a trajectory without a file. Most decoding comes later.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np

import rollout_trace as rt
from rollout_trace.clients import sampler, tinker
from tests.clients.samplers.standin import LLM, Logprob, SamplingParams

TOKENS, PROMPT, CALLS, ROUNDS = 500, 2000, 100, 7


def vllm_output(alternatives: int) -> Any:
    """A ``RequestOutput`` with so many alternatives at each position, the sampled token among them."""
    ids = [7 * at % 50_000 for at in range(TOKENS)]
    rows = [{token + at: Logprob(-0.123456 - at, at + 1, "word") for at in range(alternatives)} for token in ids]
    one = SimpleNamespace(index=0, text="word " * TOKENS, token_ids=ids, logprobs=rows if alternatives else None)
    one.finish_reason, one.stop_reason = "stop", None
    return SimpleNamespace(request_id="1", prompt_token_ids=list(range(PROMPT)), prompt_logprobs=None, outputs=[one])


def seconds(call: Callable[[], object]) -> float:
    """Of one call, on average over many."""
    began = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - began) / CALLS


def added(bare: Callable[[], object], wrapped: Callable[[], object]) -> tuple[float, float, float]:
    """Milliseconds that a call takes more: the median of the rounds, the least and the most."""
    rounds = []
    for _ in range(ROUNDS):
        with rt.trajectory():
            rounds.append(1000 * (seconds(wrapped) - seconds(bare)))
    return statistics.median(rounds), min(rounds), max(rounds)


def of_vllm(alternatives: int) -> tuple[float, float, float]:
    """``LLM.generate`` with a prompt of ids."""
    answers, prompt = [vllm_output(alternatives)], {"prompt_token_ids": list(range(PROMPT))}
    bare, wrapped, params = LLM(answers), rt.wrap_vllm(LLM(answers)), SamplingParams(logprobs=alternatives - 1)
    return added(lambda: bare.generate(prompt, params), lambda: wrapped.generate(prompt, params))


def of_tinker() -> tuple[float, float, float]:
    """Writing the answer of a ``sample``: the rest is a request over the network."""
    sequence = SimpleNamespace(tokens_np=np.arange(TOKENS, dtype=np.int32), stop_reason="stop")
    sequence.logprobs_np = np.random.default_rng(0).uniform(-5, 0, TOKENS).astype(np.float32)
    response = SimpleNamespace(sequences=[sequence])
    prompt = SimpleNamespace(chunks=[SimpleNamespace(tokens=list(range(PROMPT)))])
    bound: Any = SimpleNamespace(arguments={"prompt": prompt, "sampling_params": SimpleNamespace(temperature=1.0)})
    settings = sampler.settings_for(tinker._ENGINE, False, 1 << 26, None, False)

    def call() -> None:
        run = tinker._Run(SimpleNamespaceKey(), settings, bound)
        run.answer(lambda: [tinker._answer(response, {})])

    return added(lambda: None, call)


class SimpleNamespaceKey:
    """A client that can be looked up."""


def main() -> None:
    """Prints the table."""
    print(
        f"one prompt of {PROMPT} ids, {TOKENS} sampled tokens; ms added to a call: median (least to most of {ROUNDS})"
    )
    rows = {
        "LLM.generate, ids alone": lambda: of_vllm(0),
        "LLM.generate, logprobs": lambda: of_vllm(1),
        "LLM.generate, 5 alternatives": lambda: of_vllm(6),
        "SamplingClient.sample, logprobs": of_tinker,
    }
    for name, measure in rows.items():
        median, least, most = measure()
        print(f"{name:32} {median:6.3f} ({least:.3f} to {most:.3f})")


if __name__ == "__main__":
    main()
