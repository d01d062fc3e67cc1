"""What a person can do about a request that found no answer."""

from __future__ import annotations

from collections.abc import Sequence

from . import normalize
from ._difference import Difference
from ._match_facts import Facts, Reason
from ._normal_form import key_of
from ._requests import MatchOptions, Request, request_of


def hints(reason: Reason, request: Request, found: Sequence[Difference], facts: Facts, test: str | None) -> list[str]:
    """One line for each thing to try."""
    lines = [f"if the change is meant, record it again: pytest --replay=record{f' {test}' if test else ''}"]
    if reason == "order":
        lines.append('if these calls may come in any order: order="free" in the mark')
    if (name := _normaliser(request, facts)) is not None:
        return [*lines, f"if only {name} differ: normalize=rollout_trace.testing.normalize.{name} in the mark"]
    settings = [one.name for one in found if one.part == "setting"]
    if settings and len(settings) == len(found):
        lines.append(f"if this may differ: ignore={settings!r} in the mark")
    return lines


def _normaliser(request: Request, facts: Facts) -> str | None:
    """The ready-made normaliser that makes the request equal to the nearest one; None where none does."""
    if facts.nearest is None or facts.options.normalize is not None:
        return None
    for name in ("dates", "uuids"):
        options = MatchOptions(facts.options.ignore, getattr(normalize, name))
        if key_of(request, options) == key_of(request_of(facts.nearest.exchange), options):
            return name
    return None
