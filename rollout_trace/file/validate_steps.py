"""What a reader takes as it is although a rule of the format is broken: within one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from itertools import chain, islice
from typing import Any

import msgspec

from rollout_trace.data.user_values import brief
from rollout_trace.file.decode import BadLine, Parsed
from rollout_trace.file.records import StepRecord, TrajectoryRecord

_items = msgspec.json.Decoder(list[msgspec.Raw])
_INCOMPLETE = "logprobs_incomplete"


def step_problems(parsed: Parsed) -> Iterator[BadLine]:
    """The rules that are broken in a line."""
    record = parsed.record
    yield from _order(record.started_at, record.ended_at, "$.ended_at")
    if record.parent_id is not None and record.parent_id == record.id:
        yield BadLine("$.parent_id", f"expected another trajectory, got {brief(record.id)} itself", "parent-step")
    yield from _references(record)
    yield from _usage(record)
    yield from _logprobs(parsed)
    for at, step in enumerate(record.steps):
        yield from _numbers(step, at)
        if step.tokens is not None or isinstance(step.advantage, list):
            yield from _lengths(step, at, parsed)
    for at, run in enumerate(record.tool_runs):
        yield from _not_negative(run.duration_ms, f"$.tool_runs[{at}].duration_ms")
    for at, exchange in enumerate(record.exchanges):
        yield from _not_negative(exchange.duration_ms, f"$.exchanges[{at}].duration_ms")
        yield from _not_negative(min(exchange.chunk_times_ms, default=None), f"$.exchanges[{at}].chunk_times_ms")


# Times and numbers


def _order(started: datetime | None, ended: datetime | None, path: str) -> Iterator[BadLine]:
    if started is not None and ended is not None and ended < started:
        problem = f"expected a time from started_at on, {started.isoformat()}, got {ended.isoformat()}"
        yield BadLine(path, problem, "time-order")


def _not_negative(value: float | None, path: str) -> Iterator[BadLine]:
    if value is not None and value < 0:
        yield BadLine(path, f"expected 0 or more, got {value}", "negative-number")


_COUNTS = ("input", "output", "cache_read", "cache_write", "reasoning")


def _numbers(step: StepRecord, at: int) -> Iterator[BadLine]:
    for name in ("latency_ms", "time_to_first_token_ms"):
        yield from _not_negative(getattr(step, name), f"$.steps[{at}].{name}")
    for place, attempt in enumerate(step.attempts):
        yield from _not_negative(attempt.duration_ms, f"$.steps[{at}].attempts[{place}].duration_ms")
    if step.usage is not None:
        for name in _COUNTS:
            yield from _not_negative(getattr(step.usage, name), f"$.steps[{at}].usage.{name}")


def _usage(record: TrajectoryRecord) -> Iterator[BadLine]:
    calls = Counter(step.id if step.call_id is None else step.call_id for step in record.steps)
    for at, step in enumerate(record.steps):
        output, tokens = None if step.usage is None else step.usage.output, step.tokens
        if output is None or tokens is None or tokens.end is None:
            continue
        # Those of a call are of all its choices, and where it was cut off the server has counted more.
        is_whole = step.status == "ok" and step.token_source == "engine" and step.finish_reason is not None
        length = tokens.end - (tokens.prompt or 0)
        if is_whole and calls[step.id if step.call_id is None else step.call_id] == 1 and abs(output - length) > 1:
            problem = f"expected {length}, the ids of the completion (one more or less with its end), got {output}"
            yield BadLine(f"$.steps[{at}].usage.output", problem, "usage-output")


# References


def _references(record: TrajectoryRecord) -> Iterator[BadLine]:
    ids: dict[str, int] = {}
    choices: dict[tuple[str, int], int] = {}
    before = -1
    for at, step in enumerate(record.steps):
        if ids.setdefault(step.id, at) != at:
            problem = (
                f"expected an id that no other step has, got {brief(step.id)}, which is that of $.steps[{ids[step.id]}]"
            )
            yield BadLine(f"$.steps[{at}].id", problem, "duplicate-step-id")
        choice = (step.id if step.call_id is None else step.call_id), step.choice
        if choices.setdefault(choice, at) != at and ids[step.id] == at:
            other = f"$.steps[{choices[choice]}]"
            problem = f"expected one step for choice {step.choice} of call {brief(choice[0])}, got {other} too"
            yield BadLine(f"$.steps[{at}].call_id", problem, "duplicate-choice")
        index = at if step.index is None else step.index
        if index <= before:
            problem = f"expected more than {before}, the index of the step before it, got {index}"
            yield BadLine(f"$.steps[{at}].index", problem, "index-order")
        before = index
    for at, run in enumerate(record.tool_runs):
        if run.step_id is not None and run.step_id not in ids:
            problem = f"expected the id of a step of the trajectory, got {brief(run.step_id)}"
            yield BadLine(f"$.tool_runs[{at}].step_id", problem, "tool-run-step")


# Tokens


def _logprobs(parsed: Parsed) -> Iterator[BadLine]:
    import numpy as np

    known = [one for one in parsed.logprobs if one is not None and len(one)]
    # One look at all of them: of the most lines nothing is wrong. NaN is not <= 0.
    if not known or bool(np.max(np.concatenate(known)) <= 0):
        return
    for at, (step, logprobs) in enumerate(zip(parsed.record.steps, parsed.logprobs, strict=True)):
        if logprobs is None:
            continue
        above = np.flatnonzero(logprobs > 0)
        for place in islice(above, 1):
            more = f", and {len(above) - 1} more of the step" if len(above) > 1 else ""
            problem = f"expected 0 or less, got {logprobs[place].item():.6g}{more}"
            yield BadLine(f"$.steps[{at}].tokens.logprobs[{place}]", problem, "logprob-positive")
        missing = np.flatnonzero(np.isnan(logprobs))
        if len(missing) and (step.token_issue is None or step.token_issue.code != _INCOMPLETE):
            problem = f"expected numbers, or the token_issue {_INCOMPLETE!r}, got {len(missing)} nulls"
            yield BadLine(f"$.steps[{at}].tokens.logprobs[{missing[0]}]", problem, "logprob-missing")


def _lengths(step: StepRecord, at: int, parsed: Parsed) -> Iterator[BadLine]:
    tokens, length = step.tokens, None
    if tokens is not None and tokens.end is not None:
        length = tokens.end - (tokens.prompt or 0)
    advantage, top = step.advantage, parsed.top_logprobs[at]
    if isinstance(advantage, list) and length is not None and len(advantage) != length:
        problem = f"expected {length} numbers, the tokens of the completion, got {len(advantage)}"
        yield BadLine(f"$.steps[{at}].advantage", problem, "advantage-length")
    if tokens is None:
        return
    logprobs = parsed.logprobs[at]
    if logprobs is not None and top not in (b"", b"null"):
        yield from _alternatives(top, len(logprobs), f"$.steps[{at}].tokens.top_logprobs")
    if tokens.policy_spans is not None:
        yield from _spans(tokens.policy_spans, length, f"$.steps[{at}].tokens.policy_spans")


def _alternatives(top: bytes, length: int, path: str) -> Iterator[BadLine]:
    try:
        found = len(_items.decode(top))
    except (msgspec.DecodeError, ValueError, RecursionError):
        return  # The alternatives are read when they are asked for, by a decoder that takes more.
    if found != length:
        problem = f"expected {length} lists, as many as logprobs, got {found}"
        yield BadLine(path, problem, "top-logprobs-length")


def _spans(spans: list[Any], length: int | None, path: str) -> Iterator[BadLine]:
    begins = [span[0] for span in spans]
    ends = [span[1] for span in spans]
    expected = list(chain([0], ends))
    wrong = next((at for at, begin in enumerate(begins) if begin != expected[at]), None)
    if wrong is not None:
        problem = f"expected a span that begins at {expected[wrong]}, where the one before it ends, got {begins[wrong]}"
        yield BadLine(f"{path}[{wrong}]", problem, "policy-spans-gap")
    elif length is not None and expected[-1] != length:
        problem = f"expected spans up to {length}, the length of the completion, got up to {expected[-1]}"
        yield BadLine(path, problem, "policy-spans-gap")
