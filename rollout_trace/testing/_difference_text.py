"""Differences between two requests, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._difference import MISSING, Detail, Difference
from ._paper import Paper
from ._text_parts import beginning, one_line, windows

_MOST_PARTS = 8
_MOST_DETAILS = 4


def summary(found: Sequence[Difference], other: str) -> str:
    """One sentence: ``its message 4 (tool) differs from that of the recorded call 3``.

    Args:
        found: what differs.
        other: the call that it differs from.
    """
    if not found:
        return f"it differs from {other}"
    if len(found) == 1:
        return _of_one(found[0], other)
    names = list(dict.fromkeys(_named(one) for one in found))
    if len(names) == 1:
        are = "differ from those" if names == ["tools"] else "differs from that"
        return f"its {names[0]} {are} of {other}"
    shown = names if len(names) <= 4 else [*names[:3], f"{len(names) - 3} more places"]
    return f"it differs from {other} in {', '.join(shown[:-1])} and {shown[-1]}"


def _named(one: Difference) -> str:
    return "tools" if one.part == "tools" else beginning(one.name, 40)


def _of_one(one: Difference, other: str) -> str:
    name, detail = beginning(one.name, 40), one.details[0]
    if one.part == "messages":
        if one.kind == "moved":
            return f"its {name} was {detail.recorded} in {other}"
        if one.kind == "added":
            return f"its {name} is not in {other}"
        if one.kind == "removed":
            return f"it lacks {name} of {other}"
    if one.part == "tools":
        if one.kind == "moved":
            return f"its tools are in another order than those of {other}"
        verb = {"added": "is new to", "removed": "is missing from", "changed": "differs in"}[one.kind]
        return f"the tool {name} {verb} its tools, compared with {other}"
    return f"its {name} differs from that of {other}"


def difference_lines(found: Sequence[Difference], paper: Paper) -> list[str]:
    """What differs, part by part."""
    lines = []
    for one in found[:_MOST_PARTS]:
        lines += _part_lines(one, paper)
    if len(found) > _MOST_PARTS:
        lines.append(paper.title(f"and {len(found) - _MOST_PARTS} more differences"))
    return lines


def _part_lines(one: Difference, paper: Paper) -> list[str]:
    name = beginning(one.name, 40)
    if one.part == "tools":
        name = "tools" if one.kind == "moved" else f"tool {name}"
    if one.kind == "moved" and one.part == "messages":
        return [paper.title(f"{name}: moved"), *_rows(one.details[0], paper)]
    if one.kind in ("added", "removed"):
        return [paper.title(f"{name}: {one.kind}"), *_rows(one.details[0], paper)]
    lines = []
    for detail in one.details[:_MOST_DETAILS]:
        lines += _detail_lines(name, detail, paper)
    if len(one.details) > _MOST_DETAILS:
        lines.append(paper.title(f"{name}, and {len(one.details) - _MOST_DETAILS} more fields"))
    return lines


def _detail_lines(name: str, detail: Detail, paper: Paper) -> list[str]:
    title = f"{name}, {beginning(detail.path, 60)}" if detail.path else name
    if detail.recorded is MISSING or detail.now is MISSING:
        return [paper.title(title), *_rows(detail, paper, is_field=True)]
    found = windows(one_line(detail.recorded), one_line(detail.now), paper.room)
    note = ""
    if found.equal > 40:
        note = f", after {found.equal:,} equal characters" + (f" (line {found.line})" if found.line > 1 else "")
    return [paper.title(title, note), *paper.both(found)]


def _rows(detail: Detail, paper: Paper, *, is_field: bool = False) -> list[str]:
    lines = []
    for label, value, style in (("recorded", detail.recorded, "red"), ("now", detail.now, "green")):
        if value is not MISSING:
            lines += paper.row(label, beginning(one_line(_text_of(value)), paper.room), style)
        elif detail.path or is_field:
            lines += paper.row(label, "(not there)", "dim")
    return lines


def _text_of(value: Any) -> Any:
    """The text of a message that is nothing else; other values as they are."""
    if not isinstance(value, dict) or "role" not in value or not value.keys() <= {"role", "type", "content", "parts"}:
        return value
    content = value.get("content", value.get("parts"))
    if (
        isinstance(content, list)
        and len(content) == 1
        and isinstance(content[0], dict)
        and content[0].keys() == {"text"}
    ):
        content = content[0]["text"]
    return content if isinstance(content, str) else value
