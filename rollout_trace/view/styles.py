"""Options and colours of terminal output: roles; tokens by logprob, entropy, ratio or mask; dark and light.

Every colour is one of the 256 that terminals share, so that its contrast is known; a test computes it. Nothing is said
by colour alone: without colours the marks of ``MARKS`` stand around tokens.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Literal, TypeAlias, get_args

from rollout_trace.view.model import Tokens

if TYPE_CHECKING:
    from rich.console import Console

    from rollout_trace.view.tokens import TokenTexts

ThemeName: TypeAlias = Literal["dark", "light"]
ColorBy: TypeAlias = Literal["logprob", "entropy", "ratio", "mask"]
COLOR_BY: tuple[ColorBy, ...] = get_args(ColorBy)

PROBABILITIES = (0.9, 0.5, 0.1, 0.01)
"""A token's level is the number of these that its probability is below."""
ENTROPIES = (0.1, 0.5, 1.0, 2.0)
"""Nats. A token's level is the number of these that its entropy reaches."""
RATIOS = (1.01, 1.1, 1.5, 2.0)
"""A token's level is the number of these that the trainer's probability over the engine's, or the inverse of that,
reaches."""
MARKS = (("", ""), ("", ""), ("‹", "›"), ("«", "»"), ("⟦", "⟧"))
"""Around a token of each level, where there are no colours."""
LEFT_OUT = ("[-", "-]")
"""Around a completion that no training row has."""

_STYLES = {
    "system": ("bold color(146)", "bold color(60)"),
    "user": ("bold color(117)", "bold color(25)"),
    "assistant": ("bold color(114)", "bold color(22)"),
    "tool": ("bold color(180)", "bold color(94)"),
    "reasoning": ("italic color(145)", "italic color(59)"),
    "meta": ("color(247)", "color(240)"),
    "rule": ("color(245)", "color(242)"),
    "title": ("bold", "bold"),
    "error": ("bold color(210)", "bold color(124)"),
    "warning": ("color(221)", "color(94)"),
    "info": ("color(110)", "color(25)"),
    "child": ("color(183)", "color(54)"),
    "level1": ("color(228)", "color(94)"),
    "level2": ("color(16) on color(222)", "color(16) on color(223)"),
    "level3": ("color(16) on color(209)", "color(16) on color(216)"),
    "level4": ("bold color(231) on color(160)", "bold color(231) on color(160)"),
    "trained": ("color(16) on color(151)", "color(16) on color(151)"),
    "left_out": ("color(247)", "color(242)"),
}
"""On a dark and on a light background."""
THEMES: Mapping[ThemeName, Mapping[str, str]] = {
    "dark": {name: dark for name, (dark, _) in _STYLES.items()},
    "light": {name: light for name, (_, light) in _STYLES.items()},
}


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """Options for what to show of a trajectory."""

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


def theme_of(environment: Mapping[str, str]) -> ThemeName:
    """``light`` where ``COLORFGBG``, which several terminals set, gives a light background; else ``dark``."""
    background = environment.get("COLORFGBG", "").rpartition(";")[2]
    return "light" if background in ("7", "15") else "dark"


def console(
    *,
    file: IO[str] | None = None,
    theme: ThemeName | None = None,
    width: int | None = None,
    color: bool | None = None,
) -> Console:
    """Returns a console that prints to a terminal, or without colours to a file or pipe.

    Args:
        file: standard output where it is not given.
        theme: of the terminal's background; found by ``theme_of`` where it is not given.
        width: in columns; the terminal's where it is not given, else that of ``COLUMNS``, else 80.
        color: False: no colours; True: colours, to a pipe too; None: where a terminal shows them and ``NO_COLOR`` is
            not set.

    Raises:
        ImportError: rich is not installed.
    """
    try:
        from rich.console import Console
        from rich.theme import Theme
    except ImportError:
        raise ImportError(
            "showing trajectories in a terminal needs the package rich. In a checkout: pip install '.[rich]'"
        ) from None
    target = sys.stdout if file is None else file
    _print_anything(target)
    made = Console(
        file=target,
        theme=Theme(THEMES[theme or theme_of(os.environ)]),
        width=width,
        color_system="256" if color else "auto",
        force_terminal=True if color else None,
        no_color=None if color is None else not color,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    if made.width < 20:
        made.width = 20
    return made


def _print_anything(file: IO[str]) -> None:
    """Writes characters that a file's encoding lacks as backslash escapes, instead of raising."""
    reconfigure = getattr(file, "reconfigure", None)
    encoding = (getattr(file, "encoding", None) or "utf-8").lower().replace("-", "")
    if reconfigure is not None and encoding != "utf8":
        reconfigure(errors="backslashreplace")


def has_colors(target: Console) -> bool:
    """Whether colours are seen on it."""
    return target.color_system is not None and not target.no_color


def levels_of(tokens: Tokens, color_by: ColorBy) -> list[int] | None:
    """The level of each token, 0 to 4; None where it is not known of any. A token without a value has level 0."""
    columns = {
        "entropy": (tokens.entropy, _entropy_level),
        "ratio": (tokens.log_ratios, _ratio_level),
        "logprob": (tokens.logprobs, probability_level),
    }
    values, level = columns.get(color_by, (None, probability_level))
    return None if values is None else list(map(level, values))


def probability_level(logprob: float | None) -> int:
    """The number of ``PROBABILITIES`` that a token's is below; 0 where it is not known."""
    # Compared as probabilities: that of 0.5 is level 1, as the legend says it.
    return 0 if logprob is None else sum(logprob < math.log(one) - 1e-6 for one in PROBABILITIES)


def _ratio_level(log_ratio: float | None) -> int:
    return 0 if log_ratio is None else sum(abs(log_ratio) >= math.log(one) - 1e-6 for one in RATIOS)


def _entropy_level(entropy: float | None) -> int:
    return 0 if entropy is None else sum(entropy >= one for one in ENTROPIES)
