"""Finds all that is wrong with a line: what the reader refuses, place by place, and which rules it lets pass."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from itertools import chain, islice
from operator import attrgetter
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
import orjson

from rollout_trace.data.user_values import brief
from rollout_trace.file.decode import build, parse
from rollout_trace.file.exchanges import exchange_problems
from rollout_trace.file.line_format import BadLine, at_any_depth, type_error
from rollout_trace.file.line_steps import Parsed
from rollout_trace.file.media import media_problems
from rollout_trace.file.records import StepRecord, TokensRecord, TrajectoryRecord

PER_LINE = 20
"""Problems of one line that are looked for."""

_WHOLE = frozenset(("newer-version", "unknown-schema"))
"""Codes behind which the other values of a line mean nothing."""


def check_line(line: bytes, folder: str | None) -> tuple[TrajectoryRecord | None, list[BadLine]]:
    """The record of a line of trajectories, and what is wrong with it: the first ``PER_LINE`` places.

    The record is None where the types are not those of the format. Then, and only then, what the values refer to is not
    checked. Media are read in their folder, where there is one, and not put into the line.
    """
    try:
        return at_any_depth(_check, line, folder)
    except BadLine as error:
        return None, [error]


def _check(line: bytes, folder: str | None) -> tuple[TrajectoryRecord | None, list[BadLine]]:
    try:
        parsed = parse(line)
    except BadLine as error:
        return None, refused_problems(line, error, TrajectoryRecord)
    keys = [] if has_distinct_keys(line, parsed) else json_problems(line)[1]
    # Without the field, a line refers to no media: it need not be searched.
    media = () if parsed.record.media is None or folder is None else media_problems(line, folder)
    refused = _build_problems(parsed)
    return parsed.record, list(islice(chain(keys, media, refused, step_problems(parsed)), PER_LINE))


def refused_problems(line: bytes, error: BadLine, kind: type) -> list[BadLine]:
    """Lists what is wrong with the types of a line that the reader refuses with this error."""
    if error.code in _WHOLE:
        return [error]
    value, found = json_problems(line)
    if value is None and not found:
        return [error]
    every = list(islice(chain(found, type_problems(value, kind)), PER_LINE))
    return every or [error]


def _build_problems(parsed: Parsed) -> Iterator[BadLine]:
    """Yields what the reader refuses of the values: it is asked again without what it has refused before."""
    while True:
        try:
            build(parsed)
            return
        except BadLine as error:
            if error.path.startswith("$.exchanges["):
                # Others refer to it by its place: the table is left out whole, when all of it was looked at.
                yield from exchange_problems(parsed.record.exchanges)
                parsed.record.exchanges = []
                continue
            yield error
            if not _leave_out(parsed, error.path):
                return


_PLACE = re.compile(r"\$\.(segments|arrays|steps)(?:\[(\d+)\])?(?:\.(\w+))?(?:\.(\w+))?")
_IDS = ("segment", "prompt", "end")
_RUNS = ("routed_experts", "prompt_logprobs", "prompt_top_tokens")


def _leave_out(parsed: Parsed, path: str) -> bool:
    """Removes what is at a path from a line, and what refers to it. False: it cannot be removed alone."""
    match = _PLACE.match(path)
    if match is None:
        return False
    table, at, field, part = match[1], int(match[2] or 0), match[3], match[4]
    record = parsed.record
    if table != "steps":
        setattr(record, table, [])
        if table == "segments":
            parsed.ids.counts.clear()
        for step in record.steps:
            _clear(step.tokens, _IDS if table == "segments" else _RUNS)
        return True
    step = record.steps[at]
    if field != "tokens":
        return _clear(step, (field,))
    if part == "logprobs":
        parsed.logprobs[at] = None
    elif part == "top_logprobs":
        parsed.top_logprobs[at] = b""
    else:
        return _clear(step.tokens, _IDS if part in (None, "segment") else (part,))
    return True


def _clear(record: object, names: tuple[str, ...]) -> bool:
    """Sets fields to None. False where all are already."""
    has_any = [name for name in names if record is not None and getattr(record, name, None) is not None]
    for name in has_any:
        setattr(record, name, None)
    return bool(has_any)


def json_problems(line: bytes) -> tuple[Any, list[BadLine]]:
    """The value of a line, and where it has a name twice or a constant that is no JSON (NaN), which is None then.

    The value is None where the line is not JSON: then the reader's own error is all there is.
    """
    try:
        value = json.loads(line, parse_constant=_Constant, object_pairs_hook=_Pairs)
        found: list[BadLine] = []
        return _plain(value, "$", found), found
    except (ValueError, RecursionError):
        return None, []


def type_problems(value: Any, kind: Any, path: str = "$") -> Iterator[BadLine]:
    """Yields what is wrong with the types of a value.

    Args:
        value: as ``json`` loads it. Fields that the reader keeps as bytes are removed from it.
    """
    arms = _arms(kind)
    struct = next((arm for arm in arms if isinstance(arm, type) and issubclass(arm, msgspec.Struct)), None)
    if struct is not None and isinstance(value, dict):
        yield from _field_problems(value, struct, path)
        return
    items = next((get_args(arm)[0] for arm in arms if get_origin(arm) is list), None)
    holds_records = any(isinstance(arm, type) and issubclass(arm, msgspec.Struct) for arm in _arms(items))
    if isinstance(value, list) and holds_records:
        for at, item in enumerate(value):
            yield from type_problems(item, items, f"{path}[{at}]")
        return
    problem = _problem(value, kind, path)
    if problem is None:
        return
    # A list or an object of plain values: each of them has its own place.
    inside: list[BadLine] = []
    if isinstance(value, list) and items is not None:
        inside = [one for at, item in enumerate(value) for one in type_problems(item, items, f"{path}[{at}]")]
    values = next((get_args(arm)[1] for arm in arms if get_origin(arm) is dict), None)
    if isinstance(value, dict) and values is not None:
        inside = [one for name, item in value.items() for one in type_problems(item, values, f"{path}[{name!r}]")]
    yield from inside or [problem]


def _field_problems(value: dict[str, Any], struct: type[msgspec.Struct], path: str) -> Iterator[BadLine]:
    for field in msgspec.structs.fields(struct):
        name = field.encode_name
        if name not in value:
            if field.required:
                yield BadLine(f"{path}.{name}", "the required field is missing", "missing-field")
        elif msgspec.Raw in _arms(field.type):
            if not isinstance(value.pop(name), (list, type(None))):
                yield BadLine(f"{path}.{name}", "expected a list, got another value", "top-logprobs-type")
        else:
            yield from type_problems(value[name], field.type, f"{path}.{name}")


def _problem(value: Any, kind: Any, path: str) -> BadLine | None:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        return type_error(error, lambda: value, path)
    except UnicodeEncodeError as error:  # Where a time is expected.
        return BadLine(path, f"expected a time as in RFC 3339, got half a surrogate pair: {error}", "bad-time")
    except RecursionError:
        return BadLine(path, "expected values that can be decoded, got lists or objects nested too deeply", "too-deep")
    return None


def _arms(kind: Any) -> tuple[Any, ...]:
    """The types that a value may be of, without what annotates them."""
    if get_origin(kind) is Annotated:
        return _arms(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return tuple(arm for one in get_args(kind) for arm in _arms(one))
    return (kind,)


# JSON


class _Constant(str):
    """NaN, Infinity or -Infinity, where it stood."""

    __slots__ = ()


class _Pairs(list[tuple[str, Any]]):
    """The members of an object, names that occur twice included."""


def _plain(value: Any, path: str, found: list[BadLine]) -> Any:
    """The value with dicts for ``_Pairs`` and None for ``_Constant``."""
    if isinstance(value, _Constant):
        found.append(BadLine(path, f"expected a finite number, got {value!s}: JSON has none", "json-constant"))
        return None
    if isinstance(value, _Pairs):
        members: dict[str, Any] = {}
        for name, item in value:
            if name in members:
                found.append(
                    BadLine(f"{path}.{name}", "expected the name once in its object, got it twice", "duplicate-key")
                )
            members[name] = _plain(item, f"{path}.{name}", found)
        return members
    if isinstance(value, list):
        return [_plain(item, f"{path}[{at}]", found) for at, item in enumerate(value)]
    return value


_objects = msgspec.json.Decoder(dict[str, msgspec.Raw])
_lists = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
# Expressions, which are searched for three times as fast as `bytes.count` and `in` search.
_KEY = re.compile(rb'":')
"""The end of a name. Within a text, the bytes before it are a backslash more, in a line and in what is made of it."""
_ESCAPED_KEY = re.compile(rb"\\u00(?:22|3[aA])")
"""A quote or a colon in a form in which nothing writes them, and which what is made of a line has as itself."""
_LARGE = 1 << 20
_COUNTED = frozenset(("messages", "tools", "segments", "steps", "arrays"))
_FAILED = (msgspec.DecodeError, ValueError, TypeError, RecursionError)


def has_distinct_keys(line: bytes, parsed: Parsed) -> bool:
    """Tells whether surely no object of a line has a name twice; if False, only a parse with all names can say.

    A decoder that keeps one value of a name leaves fewer names than the line has. The objects of alternatives
    (``top_logprobs``), as engines send them, are not looked at.
    """
    record = parsed.record
    try:
        top = _objects.decode(line)
        steps = _lists.decode(top["steps"]) if "steps" in top else []
        count = len(top) + 3 * len(record.arrays) + _dumped(record.messages) + _dumped(record.tools)
        count += sum([1 if one.base is None else 2 for one in record.segments])
        for step, alternatives in zip(record.steps, parsed.top_logprobs, strict=True):
            if step.tokens is not None:
                count += _keys_of_tokens(step.tokens)
            if alternatives:
                count += 1 + _count(alternatives)
        others = [value for name, value in top.items() if name not in _COUNTED]
        for names in steps:
            count += len(names)
            names.pop("tokens", None)
            others += names.values()
        # Together, which is quicker, unless the copies would be large.
        joined = [b"[%s]" % b",".join(others)] if len(line) < _LARGE else (bytes(one) for one in others)
        count += sum(_dumped(orjson.loads(one)) for one in joined)
    except _FAILED:
        return False
    return count == _count(line) and _ESCAPED_KEY.search(line) is None


def has_distinct_plain_keys(line: bytes) -> bool:
    """The same of a short line of any kind, which is parsed for it."""
    try:
        return _dumped(orjson.loads(line)) == _count(line) and _ESCAPED_KEY.search(line) is None
    except _FAILED:
        return False


def _dumped(value: Any) -> int:
    return _count(orjson.dumps(value)) if value else 0


def _count(text: bytes) -> int:
    # Of a large text all that is found would fill memory.
    return len(_KEY.findall(text)) if len(text) < _LARGE else text.count(b'":')


_fields = attrgetter(*(name for name in TokensRecord.__struct_fields__ if name != "top_logprobs"))


def _keys_of_tokens(tokens: TokensRecord) -> int:
    """Counts the names of ``tokens``, those of the objects in it included; without alternatives."""
    values = _fields(tokens)
    count = len(values) - values.count(None)
    if tokens.prompt_top_tokens is not None:
        count += 2
    if tokens.top_tokens is not None:
        count += 2 * 4
    if tokens.sampling_mask is not None:
        count += 4 * (2 if tokens.sampling_mask.logprobs is None else 3)
    return count


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
        output = None if step.usage is None else step.usage.output
        length = None if step.tokens is None else step.tokens.sampled
        if output is None or length is None:
            continue
        # Those of a call are of all its choices, and where it was cut off the server has counted more.
        is_whole = step.status == "ok" and step.token_source == "engine" and step.finish_reason is not None
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
    tokens = step.tokens
    length = None if tokens is None else tokens.sampled
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
