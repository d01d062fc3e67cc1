"""Damaged lines of files: the reader and the validator take any bytes, and agree on which lines can be read."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

from rollout_trace.file.decode import decode
from rollout_trace.file.line_format import BadLine, at_any_depth
from rollout_trace.file.records import NoteRecord
from rollout_trace.file.validate import RULES
from rollout_trace.file.validate_line import check_line, refused_problems
from tests.file.defects import GOOD_LINE
from tests.fuzz.mutate import mutate

_DATA = Path(__file__).parents[1] / "file" / "data"


@cache
def good_lines() -> list[bytes]:
    """Lines of every released version, and one that has every field with a rule."""
    lines = [line for path in sorted(_DATA.glob("*.jsonl")) for line in path.read_bytes().splitlines()]
    return [GOOD_LINE, *lines]


def damaged_line(rng: random.Random) -> bytes:
    """A line with damage in its bytes or its values."""
    return mutate(rng.choice(good_lines()), rng, streamed=False).replace(b"\n", b" ")


def check_damaged_line(line: bytes) -> None:
    """Each problem has a rule; what the reader refuses has a problem, and what it reads has a record."""
    record, problems = check_line(line, None)
    assert all(one.code in RULES for one in problems), "a problem without a rule"
    if _is_refused(line):
        assert problems, "refused, and no problem"
    else:
        assert record is not None, "read, and no record"
    assert refused_problems(line, BadLine("", "", "not-json"), NoteRecord), "no problem"


def _is_refused(line: bytes) -> bool:
    try:
        at_any_depth(decode, line)
    except BadLine:
        return True
    return False
