"""The tokens of a completion in a terminal: coloured, or marked, and the legend of that."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from rollout_trace.view._canvas import joined
from rollout_trace.view.model import Alternative, Tokens
from rollout_trace.view.plain_text import TAB, one_line, short
from rollout_trace.view.styles import ENTROPIES, LEFT_OUT, MARKS, PROBABILITIES, RATIOS, ColorBy, levels_of

_LEVELS = ("", "level1", "level2", "level3", "level4")
_ALTERNATIVES = 5


def token_text(tokens: Tokens, *, color_by: ColorBy, colors: bool, left_out: bool, limit: int | None = None) -> Text:
    """The tokens as one text: their texts, or their ids where they have none.

    Without ``colors`` marks stand around them; ``left_out``: brackets, as no training row has the completion.
    """
    levels = levels_of(tokens, color_by) or [0] * tokens.n
    end = tokens.n if limit is None else min(tokens.n, limit)
    found = Text()
    if left_out:
        found.append(LEFT_OUT[0], "left_out")
    for at in range(end):
        level = levels[at]
        style = _LEVELS[level]
        if color_by == "mask":
            style = "left_out" if left_out else "trained"
        before, after = ("", "") if colors else MARKS[level]
        if tokens.texts is None:
            found.append(f"{before}{_id(tokens, at)}{after}", style)
            found.append(" ")
            continue
        for piece, breaks in _pieces(tokens.texts[at]):
            if piece:
                # A mark stands at a word, where a line can end before it, not at the space before the word.
                word = piece.lstrip(" ") if before else piece
                found.append(piece[: len(piece) - len(word)] if word else "", style)
                found.append(f"{before}{word or '·' * len(piece)}{after}", style)
            if breaks:
                found.append("\n")
    if left_out:
        found.append(LEFT_OUT[1], "left_out")
    return found


def _id(tokens: Tokens, at: int) -> str:
    return "?" if tokens.ids is None else str(tokens.ids[at])


def _pieces(text: str) -> Iterator[tuple[str, bool]]:
    """The text of a token, safe, in pieces that each end at a line end or not."""
    if text.isprintable():
        yield text, False
        return
    lines = text.split("\n")
    for at, line in enumerate(lines):
        breaks = at < len(lines) - 1
        yield one_line(line.replace("\t", "⇥" + " " * (TAB - 1))) + ("⏎" if breaks else ""), breaks


def legend(color_by: ColorBy, *, colors: bool) -> Text:
    """What the colours, or the marks, mean."""
    if color_by == "mask":
        trained = ("trained on", "trained") if colors else "trained on"
        return Text.assemble(("tokens: ", "meta"), joined([trained, _left_out_sample()]))
    if color_by == "logprob":
        names = [f"p ≥ {PROBABILITIES[0]:g}", *(f"p < {one:g}" for one in PROBABILITIES)]
    elif color_by == "ratio":
        names = [f"ratio < {RATIOS[0]:g}", *(f"≥ {one:g}" for one in RATIOS)]
    else:
        names = [f"entropy < {ENTROPIES[0]:g}", *(f"≥ {one:g}" for one in ENTROPIES)]
    if colors:
        samples = [Text(name, style) for name, style in zip(names, _LEVELS, strict=True)]
    else:
        samples = [Text(f"{marks[0]}{name}{marks[1]}") for name, marks in zip(names, MARKS, strict=True) if marks[0]]
    unit = {"entropy": " nats", "ratio": ", or as far below 1"}.get(color_by, "")
    return Text.assemble(("tokens: ", "meta"), joined([*samples], "  "), unit, "  ", _left_out_sample())


def _left_out_sample() -> Text:
    return Text(f"{LEFT_OUT[0]}in no training row{LEFT_OUT[1]}", "left_out")


def token_table(tokens: Tokens, *, begin: int | None, color_by: ColorBy, limit: int | None) -> Table:
    """A line for each token: position in the completion and in its training row, id, text, numbers, alternatives."""
    from rich.table import Table

    levels = levels_of(tokens, color_by) or [0] * tokens.n
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="meta")
    for name in ("token", *(() if begin is None else ("in row",)), "id"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("text", overflow="fold", max_width=28)
    columns = {"entropy": (tokens.entropy, _decimal), "ratio": (tokens.log_ratios, _ratio)}
    known = {name: column for name, column in columns.items() if column[0] is not None}
    for name in ("logprob", "p", *known):
        table.add_column(name, justify="right", no_wrap=True)
    if tokens.alternatives is not None:
        table.add_column("alternatives", overflow="fold")
    for at in range(tokens.n if limit is None else min(tokens.n, limit)):
        logprob = None if tokens.logprobs is None else tokens.logprobs[at]
        row = [str(at), *(() if begin is None else (str(begin + at),)), _id(tokens, at)]
        text = "-" if tokens.texts is None else _quoted(tokens.texts[at])
        numbers = [_decimal(logprob), _probability(logprob)]
        numbers += [text_of(values[at]) for values, text_of in known.values() if values is not None]
        cells = [*map(Text, row), Text(text, _LEVELS[levels[at]]), *map(Text, numbers)]
        if tokens.alternatives is not None:
            cells.append(_alternatives(tokens.alternatives[at]))
        table.add_row(*cells)
    return table


def _alternatives(alternatives: list[Alternative]) -> Text:
    shown = [
        f"{f'#{one.id}' if one.text is None else _quoted(one.text)} {_probability(one.logprob)}"
        for one in alternatives[:_ALTERNATIVES]
    ]
    more = len(alternatives) - len(shown)
    return Text("  ".join([*shown, *([f"and {more} more"] if more else [])]))


def _quoted(text: str) -> str:
    return f'"{short(text.replace(chr(10), "⏎"), 60)}"'


def _decimal(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _ratio(log_ratio: float | None) -> str:
    return "-" if log_ratio is None else f"{math.exp(min(log_ratio, 700.0)):.3g}"


def _probability(logprob: float | None) -> str:

    if logprob is None:
        return "-"
    chance = math.exp(min(logprob, 0.0))
    return f"{chance:.3f}" if chance >= 0.001 else f"{chance:.0e}"
