"""Recordings of every engine, by protocol, and damage that tests of a protocol do to them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from rollout_trace.data.exchange import Exchange
from rollout_trace.data.model import STEP_FIELDS, Step
from rollout_trace.data.tokens import same_array
from rollout_trace.testing.recordings import load_exchanges
from rollout_trace.wire import decode
from tests.amount import cuts, examples
from tests.wire.raw import JSON, SSE, bodies, copied, sse
from tests.wire.test_damage import JUNK, places

DATA = Path(__file__).parent.parent / "data"
ENGINES = ("vllm", "llama_server", "llama_cpp_python", "transformers_serve")
PATHS = {
    "openai.completions": "/v1/completions",
    "openai.responses": "/v1/responses",
    "sglang.generate": "/inference/v1/generate",
}
BOUNDED = settings(max_examples=examples(900))
# Of the exchange and not of the answer: ids are derived from the bytes, and the server makes up the response id.
OF_THE_EXCHANGE = {"id", "call_id", "response_id"}


@cache
def recorded(protocol: str) -> dict[str, Exchange]:
    """The recordings of a protocol, as `engine/name`."""
    found = {}
    for engine in ENGINES:
        for file in (f"wire_{engine}.jsonl.xz", f"wire_{engine}_{protocol.partition('.')[2]}.jsonl.xz"):
            if (DATA / file).exists():
                exchanges = load_exchanges(DATA / file)
                found.update({f"{engine}/{e.name}": e for e in exchanges if e.path == PATHS[protocol]})
    return found


def steps_of(protocol: str, name: str, response: bytes | None = None) -> list[Step]:
    """What the decoder makes of a recording, for which it is asked once; or of another answer in its place."""
    return list(_whole(protocol, name)) if response is None else _decoded(protocol, name, response)


@cache
def _whole(protocol: str, name: str) -> list[Step]:
    return _decoded(protocol, name, recorded(protocol)[name].response)


def _decoded(protocol: str, name: str, response: bytes) -> list[Step]:
    exchange, status = recorded(protocol)[name], recorded(protocol)[name].status or 0
    return decode(protocol, exchange.request, response, content_type=exchange.content_type, status=status)


def asked(protocol: str, name: str) -> dict[str, Any]:
    """The request of a recording."""
    request: dict[str, Any] = json.loads(recorded(protocol)[name].request)
    return request


def rows(table: str) -> dict[str, tuple[str, ...]]:
    """A table with one recording a line: its name, and the other columns."""
    return {name: tuple(rest) for name, *rest in (line.split() for line in table.strip().split("\n"))}


_TIMES = ("created", "created_at", "timings", "metrics")


def without_times(step: Step) -> Step:
    """The step without what `extra` has of the exchange: when the answer was made, and how long it took."""
    extra = {name: value for name, value in (step.extra or {}).items() if name not in _TIMES}
    return replace(step, extra=extra or None)


def differing(one: Step, other: Step) -> set[str]:
    """The fields in which two steps differ, save those of the exchange itself."""
    names = set(STEP_FIELDS) - OF_THE_EXCHANGE
    one, other = without_times(one), without_times(other)
    return {name for name in names if not same_array(getattr(one, name), getattr(other, name))}


def numbers(array: Any) -> list[Any] | None:
    """An array as a list."""
    return None if array is None else array.tolist()


def float32(values: Sequence[float] | None) -> list[float] | None:
    """Numbers as float32 has them."""
    return None if values is None else np.array(values, np.float32).tolist()


def check(step: Step) -> None:
    """What holds of every step, whatever the bytes were."""
    ids, logprobs = step.completion_token_ids, step.logprobs
    for array in (step.prompt_token_ids, ids):
        assert array is None or (array.dtype == np.int32 and (array >= 0).all())
    assert logprobs is None or (np.isfinite(logprobs).all() and (logprobs <= 0).all())
    assert ids is None or step.token_source in ("engine", "logprobs")
    if ids is not None and logprobs is not None:
        assert len(ids) == len(logprobs)
    if logprobs is None:
        assert step.top_logprobs is None
    else:
        assert step.top_logprobs is None or len(step.top_logprobs) == len(logprobs)
    tokens = logprobs if ids is None else ids
    assert step.token_texts is None or (tokens is not None and len(step.token_texts) == len(tokens))
    if step.status == "ok" and step.completion is not None and ids is None:
        assert step.token_issue is not None
        assert step.token_issue.code
        assert step.token_issue.message.endswith(".")
    if step.status == "error":
        assert step.error is not None
        assert step.error.message
    assert step.status in ("ok", "error", "abandoned")


def pairs(step: Step) -> set[tuple[int, float]]:
    """Each id with its logprob; none where either is missing."""
    if step.completion_token_ids is None or step.logprobs is None:
        return set()
    return set(zip(step.completion_token_ids.tolist(), step.logprobs.tolist(), strict=True))


def check_cuts(protocol: str, request: bytes, body: bytes, *, stride: int = 1) -> None:
    """A stream cut at any byte gives what came of each choice: a beginning of what the whole stream gives."""
    whole = {step.choice: step for step in decode(protocol, request, body, content_type=SSE)}
    for end in cuts(body, stride):
        for step in decode(protocol, request, body[:end], content_type=SSE):
            check(step)
            assert step.status in ("ok", "abandoned"), body[:end]
            full = whole.get(step.choice)
            if full is None or step.completion is None or full.completion is None:
                continue
            text, full_text = step.completion.content, full.completion.content
            assert isinstance(full_text, str | None)
            assert text is None or (full_text or "").startswith(str(text))
            for name in ("completion_token_ids", "logprobs", "prompt_token_ids"):
                part, all_of = numbers(getattr(step, name)), numbers(getattr(full, name))
                if name != "prompt_token_ids" and full.token_issue is None:
                    assert part is None or part == (all_of or [])[: len(part)]


@st.composite
def damaged(draw: st.DrawFn, values: list[Any]) -> list[Any]:
    """Bodies with one to three places deleted, doubled or replaced."""
    values = copied(values)
    for _ in range(draw(st.integers(1, 3))):
        every = [path for path in places(values) if len(path) > 1]
        rare = [path for path in every if not {"top_logprobs", "output_top_logprobs", "tools"} & set(path)]
        path = draw(st.sampled_from(rare or every))
        holder: Any = values
        for key in path[:-1]:
            holder = holder[key]
        act = draw(st.sampled_from(["delete", "double", "replace", "replace"]))
        if act == "delete":
            del holder[path[-1]]
        elif act == "double" and isinstance(holder, list):
            holder.insert(path[-1], copied(holder[path[-1]]))
        else:
            holder[path[-1]] = copied(draw(st.sampled_from(JUNK)))
    return values


def decoded(protocol: str, request: Any, values: list[Any], *, streamed: bool) -> list[Step]:
    """Steps of an answer given as JSON values: one, or one for each chunk."""
    body = sse(*values) if streamed else json.dumps(values[0]).encode()
    return decode(protocol, json.dumps(request).encode(), body, content_type=SSE if streamed else JSON)


def of_recording(protocol: str, name: str) -> tuple[dict[str, Any], list[Any], bool]:
    """Request and bodies of a recording, and whether it is a stream."""
    exchange = recorded(protocol)[name]
    return asked(protocol, name), bodies(exchange), "event-stream" in exchange.content_type
