"""Records how a prompt with exact turns was sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from rollout_trace._field_docs import document_fields

Reason: TypeAlias = Literal[
    "ambiguous",
    "continued",
    "echo",
    "end_of_turn",
    "engine",
    "failed",
    "field",
    "field_in_use",
    "history_changed",
    "media",
    "no_ids",
    "not_served",
    "refused",
    "running",
    "settings_changed",
    "stored",
    "template",
    "thinking",
    "tokenizer",
]
"""Why a call went out as text: docs/tokens.md."""


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class ExactTurn:
    """How the prompt of a call that continues an earlier step was sent: as ids, or as text, and why."""

    step_id: str | None = None
    """Id of the step whose prompt and completion the ids begin with; None if the call was sent as text."""
    n_ids: int | None = None
    """Number of ids sent; None if the call was sent as text."""
    reason: Reason | None = None
    """Why the call was sent as text, or ``not_served`` if the server used other ids; None if the turn was exact."""
    detail: str | None = None
    """A sentence with what was found."""
    message: int | None = None
    """Index of the first message that differs from what was recorded; None if that is not the reason."""
    n_requests: int = 0
    """Number of requests to the server's tokenizer made before the call."""
    seconds: float = 0.0
    """Seconds that these requests took, during which the call waited."""

    @property
    def is_exact(self) -> bool:
        """Whether ids were sent and the server used them."""
        return self.n_ids is not None and self.reason is None

    def sentence(self, number: int | None = None) -> str:
        """Returns a sentence about what was sent, or why not. ``number``: the earlier step's, named instead of its
        id."""
        if self.n_ids is None:
            return f"sent as text ({self.reason}): {self.detail}"
        sent = (
            f"{self.n_ids:,} ids were sent, which begin with those of step {self.step_id if number is None else number}"
        )
        return f"{sent}." if self.reason is None else f"{sent} ({self.reason}): {self.detail}"


__all__ = ["ExactTurn", "Reason"]
