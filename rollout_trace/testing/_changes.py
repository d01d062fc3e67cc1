"""Recorded calls in lists: those that were not asked for, and what recording them again changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from rollout_trace.data.exchange import Exchange

from ._answers import answer_of
from ._call_line import call_line
from ._difference import differences
from ._difference_text import difference_lines, summary
from ._normal_form import form_of, key_of, protocol_of, target_of
from ._paper import Paper
from ._requests import MatchOptions, request_of
from ._text_parts import Paint, beginning, cells, shared_part, windows

_MOST = 20
_EXACT = MatchOptions()
_ALIKE = 0.3
"""Requests with less in common are not one request that changed."""
_MOST_COMPARED = 100


def unused_text(exchanges: Sequence[Exchange], *, width: int = 100, paint: Paint | None = None) -> str:
    """A numbered list of recorded calls, one line each: model, last message, answer. "" where there are none."""
    paper = Paper(width, paint)
    lines = []
    for number, one in enumerate(exchanges[:_MOST], 1):
        room = paper.width - 10
        answered = beginning(answer_of(one), room * 2 // 5)
        asked = call_line(request_of(one), room - cells(answered))
        lines.append(f"{number:>4}. {asked} {paper.paint(f'-> {answered}', 'dim')}")
    if len(exchanges) > _MOST:
        lines.append(f"      and {len(exchanges) - _MOST:,} more")
    return "\n".join(lines)


def changes_text(
    before: Sequence[Exchange], after: Sequence[Exchange], *, width: int = 100, paint: Paint | None = None
) -> str:
    """What recording again changed: calls added, removed and changed, and answers. "" where nothing did.

    Calls with equal requests are the same call, wherever they stand: parallel ones are recorded in any order.
    """
    paper = Paper(width, paint)
    names = _names(before), _names(after)
    blocks: list[tuple[int, list[str]]] = []
    for i, j in _pairs(before, after):
        if i is None and j is not None:
            line = paper.row("now", call_line(request_of(after[j]), paper.room), "green")
            blocks.append((j, [*paper.wrapped(f"+ {names[1][j]} added", "bold"), *line]))
        elif i is not None and j is None:
            line = paper.row("recorded", call_line(request_of(before[i]), paper.room), "red")
            blocks.append((i, [*paper.wrapped(f"- {names[0][i]} removed", "bold"), *line]))
        elif i is not None and j is not None and (lines := _pair_lines(names[1][j], before[i], after[j], paper)):
            blocks.append((j, lines))
    blocks.sort(key=lambda block: block[0])
    lines = [line for _, block in blocks[:_MOST] for line in block]
    return "\n".join([*lines, *([f"  and {len(blocks) - _MOST:,} more"] if len(blocks) > _MOST else [])])


def _names(exchanges: Sequence[Exchange]) -> list[str]:
    """``call 1``, ``call 2``, ... for those that generate, ``request GET /models`` for others."""
    names, number = [], 0
    for one in exchanges:
        generates = protocol_of(request_of(one)) is not None
        number += generates
        names.append(f"call {number}" if generates else f"request {beginning(target_of(request_of(one)), 60)}")
    return names


def _pairs(before: Sequence[Exchange], after: Sequence[Exchange]) -> Iterator[tuple[int | None, int | None]]:
    """Positions of the same call before and after; None where it is on one side only."""
    waiting: dict[bytes, list[int]] = defaultdict(list)
    for j, one in enumerate(after):
        waiting[key_of(request_of(one), _EXACT)].append(j)
    left: list[int] = []
    for i, one in enumerate(before):
        same = waiting[key_of(request_of(one), _EXACT)]
        if same:
            yield i, same.pop(0)
        else:
            left.append(i)
    new = sorted(j for found in waiting.values() for j in found)
    for i in left:
        alike = [(_likeness(before[i], after[j]), -j) for j in new[:_MOST_COMPARED]]
        best, j = max(alike, default=(0.0, 0))
        if best < _ALIKE:
            yield i, None
        else:
            new.remove(-j)
            yield i, -j
    yield from ((None, j) for j in new)


def _likeness(old: Exchange, new: Exchange) -> float:
    if protocol_of(request_of(old)) != protocol_of(request_of(new)):
        return 0
    texts = (one.request.decode("latin-1") for one in (old, new))
    return shared_part(*texts)


def _pair_lines(name: str, old: Exchange, new: Exchange, paper: Paper) -> list[str]:
    found = differences(*(form_of(request_of(one), _EXACT) for one in (old, new)))
    lines = paper.wrapped(f"~ {name} changed: {summary(found, 'the old one')}", "bold") if found else []
    if len(found) == 1:
        lines += difference_lines(found, paper)
    answers = answer_of(old), answer_of(new)
    if answers[0] != answers[1]:
        lines += [*paper.wrapped(f"~ answer of {name} changed", "bold"), *paper.both(windows(*answers, paper.room))]
    return lines
