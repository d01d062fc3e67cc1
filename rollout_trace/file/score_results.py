"""What a scoring function may return, and the report of ``score``."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rollout_trace._field_docs import document_fields
from rollout_trace.data.user_values import brief, to_builtin
from rollout_trace.errors import FormatError
from rollout_trace.file.annotate import VALUES


@document_fields
@dataclass(slots=True, kw_only=True)
class ScoreReport:
    """What ``score`` did. The four counts together are the trajectories of the files, each id of a file once."""

    scored: int = 0
    """Trajectories whose score was noted."""
    skipped: int = 0
    """Trajectories that were scored before, or that ``where`` left out."""
    failed: int = 0
    """Trajectories for which the function raised, or returned what is no score. A note has the error."""
    unscored: int = 0
    """Trajectories for which the function returned None. Nothing is noted of them."""
    errors: list[str] = field(default_factory=list)
    """The first failures: trajectory id, exception class and message. At most 10."""
    unreadable: list[FormatError] = field(default_factory=list)
    """An error for each line, and each note, that could not be read."""

    def __str__(self) -> str:
        parts = [f"scored {self.scored}, skipped {self.skipped}, failed {self.failed}"]
        if self.unscored:
            parts.append(f"without a score {self.unscored}: the function returned None")
        if self.errors:
            more = f" (and {self.failed - len(self.errors)} more)" if self.failed > len(self.errors) else ""
            parts.append(f"failures: {'; '.join(self.errors)}{more}")
        if self.unreadable:
            parts.append(f"lines that could not be read: {len(self.unreadable)}, the first: {self.unreadable[0]}")
        return "; ".join(parts)


def result_values(result: Any) -> Mapping[str, Any] | None:
    """The values to note for what a scoring function returned, unchecked; None where it gave no score.

    Raises:
        TypeError: it is a dict, or an object, of which it cannot be told what is what.
    """
    found = to_builtin(result)
    if found is None:
        return None
    if not isinstance(found, dict):
        return {"reward": found}
    known = [name for name in found if name in VALUES]
    others = [name for name in found if name not in VALUES]
    if known and others:
        raise TypeError(
            f"the function returned {brief(others[0])} beside {brief(known[0])}; give named rewards in 'rewards', and "
            "what else there is in 'metadata'."
        )
    if others:
        return {"rewards": found}
    return found if any(value is not None and value != {} for value in found.values()) else None


def name_of(function: Any) -> str | None:
    """The name under which the scores of a function are noted; None for a lambda, which shares its name with others."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return None if name.endswith("<lambda>") else str(name)
