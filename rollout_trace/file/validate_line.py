"""All that is wrong with a line: what the reader refuses, place by place, and which rules it lets pass."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain, islice

from rollout_trace.file.decode import BadLine, Parsed, build, on_a_fresh_stack, parse
from rollout_trace.file.exchanges import exchange_problems
from rollout_trace.file.media import MissingMedia, media_problems
from rollout_trace.file.records import TrajectoryRecord
from rollout_trace.file.validate_keys import has_distinct_keys
from rollout_trace.file.validate_steps import step_problems
from rollout_trace.file.validate_types import json_problems, type_problems

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
        return _check(line, folder)
    except RecursionError:
        # The limit counts the frames of who calls too, as in the reader.
        try:
            return on_a_fresh_stack(_check, line, folder)
        except BadLine as error:
            return None, [error]


def _check(line: bytes, folder: str | None) -> tuple[TrajectoryRecord | None, list[BadLine]]:
    try:
        parsed = parse(line)
    except BadLine as error:
        return None, refused_problems(line, error, TrajectoryRecord)
    keys = [] if has_distinct_keys(line, parsed) else json_problems(line)[1]
    # Without the field, a line refers to no media: it need not be searched.
    place = None if parsed.record.media is None else folder
    media = (BadLine("", str(error), error.code) for error in _media(line, place))
    refused = _build_problems(parsed)
    return parsed.record, list(islice(chain(keys, media, refused, step_problems(parsed)), PER_LINE))


def refused_problems(line: bytes, error: BadLine, kind: type) -> list[BadLine]:
    """What is wrong with the types of a line that the reader refuses with this error."""
    if error.code in _WHOLE:
        return [error]
    value, found = json_problems(line)
    if value is None and not found:
        return [error]
    every = list(islice(chain(found, type_problems(value, kind)), PER_LINE))
    return every or [error]


def _build_problems(parsed: Parsed) -> Iterator[BadLine]:
    """What the reader refuses of the values: it is asked again without what it has refused before."""
    while True:
        try:
            build(parsed)
            return
        except BadLine as error:
            if error.path.startswith("$.exchanges["):
                # Others refer to it by its place: the table is left out whole, when all of it was looked at.
                yield from (BadLine("", str(one), one.code) for one in exchange_problems(parsed.record.exchanges))
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
            parsed.ids.clear()
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


def _media(line: bytes, folder: str | None) -> Iterator[MissingMedia]:
    return iter(()) if folder is None else media_problems(line, folder)
