"""Findings on the extras of steps: what was withheld, and what was asked for and did not come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rollout_trace.data.extras import EXTRAS
from rollout_trace.data.model import shared
from rollout_trace.train.selection import n_prompt, n_sampled
from rollout_trace.train.step_extras import misfit

if TYPE_CHECKING:
    from rollout_trace.data.model import Step

_NOT_SENT = frozenset({"not_in_this_form", "refused", "not_sent"})
"""Codes of ``ExtraIssue`` for extras that did not come; those of the others came and were withheld."""


def extra_problems(steps: Iterable[Step]) -> Iterator[tuple[str, str]]:
    """Code and message of each finding: one for each field and reason, with the number of steps."""
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for step in steps:
        for field, code, message in dict.fromkeys(_issues(step)):
            found.setdefault((field, code), []).append((step.id, message))
    for (field, code), places in found.items():
        (first, message), count = places[0], len({step_id for step_id, _ in places})
        where = f"step {first}" if count == 1 else f"{count} steps, the first {first}"
        finding = "extra_not_sent" if code in _NOT_SENT else "extra_withheld"
        yield finding, f"{field}, {code} ({where}): {message}"


def _issues(step: Step) -> Iterator[tuple[str, str, str]]:
    """Field, code and message: those of ``Step.extra_issues``, and extras that do not fit the ids of their step."""
    for issue in step.extra_issues:
        yield issue.field, issue.code, issue.message
    prompt, sampled = n_prompt(step), n_sampled(step)
    for name in EXTRAS:
        if shared(step, name) is None:
            continue
        if prompt is None or sampled is None:
            yield name, "ids_missing", "without token ids its positions are not known."
        elif (problem := misfit(step, name, prompt, sampled)) is not None:
            yield name, "not_aligned", f"{problem}."
