"""What became of a call whose prompt was to be sent as ids."""

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
    """How the prompt of a call was sent that continues an earlier step: as ids, or as text and why."""

    step_id: str | None = None
    """The step whose prompt and completion the ids begin with; None where the call went out as text."""
    n_ids: int | None = None
    """Number of ids that were sent; None where the call went out as text."""
    reason: Reason | None = None
    """Why the call went out as text, or that other ids were served (``not_served``); None where it was exact."""
    detail: str | None = None
    """A sentence with what was found."""
    message: int | None = None
    """Index of the first message that is not as it was recorded; None where that is not the reason."""
    n_requests: int = 0
    """Requests to the server's tokenizer that the call made before it."""
    seconds: float = 0.0
    """Seconds that these took: the call waited for them."""

    @property
    def is_exact(self) -> bool:
        """Whether the server got ids, and served them."""
        return self.n_ids is not None and self.reason is None

    def sentence(self, number: int | None = None) -> str:
        """Says what was sent, or why not; the earlier step by its number in the trajectory, where that is given."""
        if self.n_ids is None:
            return f"sent as text ({self.reason}): {self.detail}"
        sent = (
            f"{self.n_ids:,} ids were sent, which begin with those of step {self.step_id if number is None else number}"
        )
        return f"{sent}." if self.reason is None else f"{sent} ({self.reason}): {self.detail}"


__all__ = ["ExactTurn", "Reason"]
