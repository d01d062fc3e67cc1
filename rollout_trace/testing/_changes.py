"""Recorded calls in lists: those that were not asked for, and what recording them again changed."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

from rollout_trace.data.exchange import Exchange

from ._answers import answer_of
from ._call_line import call_line
from ._difference import differences
from ._difference_text import difference_lines
from ._normal_form import digest_of, form_of, key_of
from ._paper import Paper
from ._requests import MatchOptions, request_of
from ._text_parts import Paint, beginning, windows

_MOST = 20


def unused_text(exchanges: Sequence[Exchange], *, width: int = 100, paint: Paint | None = None) -> str:
    """A numbered list of recorded calls, one line each: model, last message, answer. "" where there are none."""
    paper = Paper(width, paint)
    lines = []
    for number, one in enumerate(exchanges[:_MOST], 1):
        room = paper.width - 6
        asked = call_line(request_of(one), room * 3 // 5)
        lines.append(f"{number:>4}. {asked}{paper.paint(' -> ' + beginning(answer_of(one), room * 2 // 5 - 4), 'dim')}")
    if len(exchanges) > _MOST:
        lines.append(f"      and {len(exchanges) - _MOST:,} more")
    return "\n".join(lines)


def changes_text(
    before: Sequence[Exchange], after: Sequence[Exchange], *, width: int = 100, paint: Paint | None = None
) -> str:
    """What recording again changed: calls added, removed and changed, and answers. "" where nothing did."""
    paper, options = Paper(width, paint), MatchOptions()
    keys = [[key_of(request_of(one), options) for one in side] for side in (before, after)]
    lines: list[str] = []
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, *keys, autojunk=False).get_opcodes():
        shared = min(i2 - i1, j2 - j1)
        for at in range(shared):
            lines += _pair_lines(i1 + at, before[i1 + at], after[j1 + at], paper, is_equal=tag == "equal")
        for at in range(i1 + shared, i2):
            lines.append(f"- call {at + 1} removed")
            lines += paper.row("recorded", call_line(request_of(before[at]), paper.room), "red")
        for at in range(j1 + shared, j2):
            lines.append(f"+ call {at + 1} added")
            lines += paper.row("now", call_line(request_of(after[at]), paper.room), "green")
    return "\n".join(lines)


def _pair_lines(at: int, old: Exchange, new: Exchange, paper: Paper, *, is_equal: bool) -> list[str]:
    lines = []
    if not is_equal:
        forms = [form_of(request_of(one), MatchOptions()) for one in (old, new)]
        lines += [f"~ call {at + 1} changed", *difference_lines(differences(*forms), paper)]
    answers = answer_of(old), answer_of(new)
    if digest_of(answers[0]) != digest_of(answers[1]):
        lines += [f"~ answer {at + 1} changed", *paper.both(windows(*answers, paper.room))]
    return lines
