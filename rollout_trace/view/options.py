"""What of a trajectory is shown in a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollout_trace.view.styles import ColorBy
    from rollout_trace.view.tokens import TokenTexts

COLOR_BY = ("logprob", "entropy", "mask")


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """What of a trajectory is shown."""

    tokens: bool = False
    """Whether completions are shown as their tokens."""
    color_by: ColorBy = "logprob"
    full: bool = False
    """Whether long texts are shown whole."""
    decode: TokenTexts | None = None
    """A tokenizer, for tokens whose texts are not recorded."""

    @property
    def text_limit(self) -> int | None:
        """Characters of a text that are shown; None: all."""
        return None if self.full else 2000

    @property
    def token_limit(self) -> int | None:
        """Tokens of a completion that are shown; None: all."""
        return None if self.full else 1000
