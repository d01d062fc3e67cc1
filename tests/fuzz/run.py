"""Feeds damaged exchanges to the decoders: `python -m tests.fuzz.run --count 1000000 --seconds 600`.

Every protocol, from the recordings in tests/data and, for SGLang, Google and Ollama, answers made by hand. What must
hold of each: at least one step; no exception; ids and logprobs that are both there have one length, and every logprob
is finite and not above 0, or missing with a reason; extras are aligned. Every third exchange has damage in its extras
alone: then ids, logprobs and text are those of the undamaged one. Every fourth is decoded as a further call of a
trajectory, too (tests/fuzz/continued.py), and with every fourth goes a damaged line of a file (tests/fuzz/lines.py).
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from rollout_trace.data.model import Step
from rollout_trace.data.tokens import same_array
from rollout_trace.testing import Exchange, load_exchanges
from rollout_trace.wire import decode
from tests.fuzz.continued import check_continued, comparing
from tests.fuzz.extras import check_extras, damage_extras
from tests.fuzz.lines import check_damaged_line, damaged_line
from tests.fuzz.made import made_exchanges
from tests.fuzz.mutate import mutate

DATA = Path(__file__).parents[1] / "data"
_SUFFIXES = (
    ("/chat/completions", "openai.chat"),
    ("/completions", "openai.completions"),
    ("/responses", "openai.responses"),
    ("/messages", "anthropic.messages"),
    ("/inference/v1/generate", "vllm.generate"),
    (":streamGenerateContent", "google.generate_content"),
    ("/api/chat", "ollama.chat"),
    ("/api/generate", "ollama.generate"),
    ("/generate", "sglang.generate"),
)


@cache
def corpus() -> list[tuple[str, Exchange]]:
    """Every recorded exchange of a protocol, with the protocol's name."""
    exchanges = [exchange for path in sorted(DATA.glob("wire_*.jsonl.xz")) for exchange in load_exchanges(path)]
    exchanges += made_exchanges()
    named = ((_protocol(exchange.path), exchange) for exchange in exchanges)
    return [(protocol, exchange) for protocol, exchange in named if protocol is not None]


def _protocol(path: str) -> str | None:
    return next((protocol for suffix, protocol in _SUFFIXES if path.partition("?")[0].endswith(suffix)), None)


def check(steps: list[Step]) -> None:
    """What holds of every step, whatever the bytes were."""
    assert steps, "no step"
    for step in steps:
        if step.completion_token_ids is not None and step.logprobs is not None:
            assert len(step.completion_token_ids) == len(step.logprobs), "ids and logprobs differ in length"
        if step.logprobs is not None:
            known = step.logprobs[~np.isnan(step.logprobs)]
            lacks = step.token_issue is not None and step.token_issue.code == "logprobs_incomplete"
            assert lacks or len(known) == len(step.logprobs), "a logprob is missing without a reason"
            assert np.isfinite(known).all(), "a logprob is not finite"
            assert (known <= 0).all(), "a logprob is above 0"
        check_extras(step)
        sampled = step.status == "ok" and step.completion is not None
        if sampled and step.completion_token_ids is None:
            assert step.token_issue is not None, "ids are missing without a reason"


def compare(steps: list[Step], undamaged: list[Step]) -> None:
    """Damage to extras costs nothing else."""
    for step, other in zip(steps, undamaged, strict=True):
        for field in ("completion", "finish_reason", "completion_token_ids", "logprobs", "token_issue", "status"):
            assert same_array(getattr(step, field), getattr(other, field)), f"damaged extras changed {field}"


@cache
def _undamaged(protocol: str, exchange: Exchange) -> list[Step]:
    kind = exchange.content_type or None
    return decode(protocol, exchange.request, exchange.response, content_type=kind, status=exchange.status or 0)


def fuzz(seed: int, count: int, deadline: float) -> tuple[int, dict[str, int], str | None]:
    """Decodes damaged exchanges until the count or the time is used up; the third value tells of the first failure."""
    rng, pool, done = random.Random(seed), corpus(), 0
    outcomes: dict[str, int] = {}
    stores = comparing()
    while done < count and (done % 256 or time.monotonic() < deadline):
        protocol, exchange = rng.choice(pool)
        streamed = "event-stream" in (exchange.content_type or "")
        request, kind = exchange.request, exchange.content_type or None
        only_extras = damage_extras(exchange.response, rng, streamed=streamed) if rng.random() < 0.33 else None
        if only_extras is None:
            response = mutate(exchange.response, rng, streamed=streamed)
            request = request if rng.random() < 0.8 else mutate(request, rng, streamed=False)
            kind = kind if rng.random() < 0.9 else None
        else:
            response = only_extras
        try:
            steps = decode(protocol, request, response, content_type=kind, status=exchange.status or 0)
            check(steps)
            if only_extras is not None:
                compare(steps, _undamaged(protocol, exchange))
            if done % 4 == 1:
                stores = comparing() if done % 1000 == 1 else stores
                check_continued(protocol, exchange, exchange.request, exchange.response, stores)
                check_continued(protocol, exchange, request, response, stores)
        except Exception as error:
            told = f"{type(error).__name__}: {error}\n{protocol} {exchange.name} {kind}\n{request!r}\n{response!r}"
            return done, outcomes, told
        failure = fuzz_line(rng) if done % 4 == 0 else None
        if failure is not None:
            return done, outcomes, failure
        done += 1
        outcomes[steps[0].status] = outcomes.get(steps[0].status, 0) + 1
    return done, outcomes, None


def fuzz_line(rng: random.Random) -> str | None:
    """Reads and validates one damaged line of a file; returns what fails of it."""
    line = damaged_line(rng)
    try:
        check_damaged_line(line)
    except Exception as error:
        return f"{type(error).__name__}: {error}\n{line!r}"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description="Feeds damaged exchanges to the decoders.")
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=900.0, help="stop after this long, whatever the count")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    workers = os.cpu_count() or 1
    share = -(-options.count // workers)
    began = time.monotonic()
    work = [(options.seed + number, share, began + options.seconds) for number in range(workers)]
    with get_context("spawn").Pool(workers) as pool:
        results = pool.starmap(fuzz, work)
    outcomes: dict[str, int] = {}
    for _, counted, _ in results:
        for name, number in counted.items():
            outcomes[name] = outcomes.get(name, 0) + number
    total = sum(done for done, _, _ in results)
    print(f"{total:,} damaged exchanges in {time.monotonic() - began:.0f} s: {outcomes}")
    failures = [told for _, _, told in results if told is not None]
    if failures:
        sys.exit("\n\n".join(failures))


if __name__ == "__main__":
    main()
