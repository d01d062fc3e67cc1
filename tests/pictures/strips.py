"""What a trainer's rows are made of, drawn: the calls of a recording as strips, and below them its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Several
from typing import NamedTuple

import rollout_trace as rt
from tests.pictures.figure import WIDTH, Figure

LETTERS = "ABCDEFGH"
COLOURS = "abcd"
LEFT, RIGHT, HIGH = 74, WIDTH - 16, 24


class Piece(NamedTuple):
    """A part of a strip."""

    length: int
    """In tokens."""
    step: int | None
    """The number of the step that sampled it, or whose text it has; None: it is new in the prompt."""
    fresh: bool
    """Sampled here, not read again."""
    drifted: bool = False
    """Not sampled: the step's text in other ids, and what follows it."""


class Recording:
    """The calls of trajectories, numbered through."""

    def __init__(self, trajectories: Several[rt.Trajectory]) -> None:
        self.trajectories = trajectories
        self.steps = [step for one in trajectories for step in one.steps]
        self.number = {step.id: at for at, step in enumerate(self.steps)}
        self.drift = {one.step_id: one for trajectory in trajectories for one in rt.drift(trajectory)}

    def ids(self, step: rt.Step) -> tuple[list[int], list[int]]:
        """Of prompt and completion."""
        assert step.prompt_token_ids is not None
        assert step.completion_token_ids is not None
        return step.prompt_token_ids.tolist(), step.completion_token_ids.tolist()

    def call(self, step: rt.Step) -> list[Piece]:
        """Prompt and completion of a call."""
        prompt, completion = self.ids(step)
        own = [(len(prompt), len(prompt) + len(completion), self.number[step.id])]
        drift = self.drift.get(step.id)
        return self._pieces([*prompt, *completion], own, drift)

    def row(self, row: rt.Sequence) -> list[Piece]:
        """A row, with the completions that are trained on in it."""
        spans = zip(row.spans, row.step_ids, strict=True)
        own = [(begin, end, self.number[step]) for (begin, end), step in spans]
        drift = self.drift.get(row.step_ids[0])
        return self._pieces(row.token_ids.tolist(), own, drift)

    def _pieces(self, ids: list[int], own: list[tuple[int, int, int]], drift: rt.Drift | None) -> list[Piece]:
        marks = {begin: (end, number, True) for begin, end, number in own}
        for number, step in enumerate(self.steps):
            prompt, completion = self.ids(step)
            end = len(prompt) + len(completion)
            if len(prompt) not in marks and end < len(ids) and ids[:end] == [*prompt, *completion]:
                marks[len(prompt)] = (end, number, False)
        found, at = [], 0
        for begin, (end, number, fresh) in sorted(marks.items()):
            if drift is not None and at <= drift.position < begin:
                found.append(Piece(drift.position - at, None, False))
                found.append(Piece(begin - drift.position, self.number[drift.previous_step_id], False, drifted=True))
            else:
                found.append(Piece(begin - at, None, False))
            found.append(Piece(end - begin, number, fresh))
            at = end
        return [piece for piece in found if piece.length]


def draw(title: str, trajectories: Several[rt.Trajectory]) -> str:
    """Calls and rows of some trajectories. Those of several are drawn below their names."""
    recording, figure = Recording(trajectories), Figure(title)
    strips = [recording.call(step) for step in recording.steps]
    strips += [recording.row(row) for one in trajectories for row in one.sequences()]
    scale = (RIGHT - LEFT) / max(sum(map(_width, strip)) for strip in strips)
    for trajectory in trajectories:
        if len(trajectories) > 1:
            figure.text(16, figure.y + 10, f"{trajectory.name}: a trajectory of its own", "bold")
            figure.y += 20
        calls = Counter(step.call_id for step in trajectory.steps)
        for step in trajectory.steps:
            label = f"{'call' if calls[step.call_id] == 1 else 'choice'} {LETTERS[recording.number[step.id]]}"
            _strip(figure, label, recording.call(step), scale, mask=False)
        figure.y += 4
        for at, row in enumerate(trajectory.sequences()):
            _strip(figure, f"row {at}", recording.row(row), scale, mask=True)
        figure.y += 8
    _legend(figure, strips)
    return figure.svg()


def _width(piece: Piece) -> float:
    # A long prompt would leave no room for anything else: its number of tokens is written in it.
    return min(max(piece.length, 26), 96)


def _strip(figure: Figure, label: str, pieces: list[Piece], scale: float, *, mask: bool) -> None:
    figure.text(16, figure.y + 16, label, "bold" if mask else "")
    x = float(LEFT)
    for piece in pieces:
        width = _width(piece) * scale
        kind, text = _look(piece)
        figure.rect(x, figure.y, width, HIGH, kind)
        shown = str(piece.length) if piece.step is None else LETTERS[piece.step]
        figure.text(x + width / 2, figure.y + 16, f"{shown}′" if piece.drifted else shown, text, anchor="middle")
        if mask:
            figure.text(x + width / 2, figure.y + HIGH + 13, "1" if piece.fresh else "0", "small mono", anchor="middle")
        x += width
    if mask:
        figure.text(16, figure.y + HIGH + 13, "mask", "small dim")
    figure.y += HIGH + (22 if mask else 6)


def _look(piece: Piece) -> tuple[str, str]:
    """The colours of its box and of its text."""
    if piece.drifted:
        return "read again", "bad"
    if piece.step is None:
        return "read", "small dim"
    colour = COLOURS[piece.step % len(COLOURS)]
    return (colour, "on bold") if piece.fresh else (f"l{colour} again", "")


def _legend(figure: Figure, strips: list[list[Piece]]) -> None:
    pieces = [piece for strip in strips for piece in strip]
    parts = [(Piece(0, None, False), "new in the prompt, with its number of tokens"), (Piece(0, 0, True), "sampled")]
    if any(piece.step is not None and not piece.fresh and not piece.drifted for piece in pieces):
        parts.append((Piece(0, 0, False), "the same ids, read again"))
    if any(piece.drifted for piece in pieces):
        parts.append((Piece(0, 0, False, drifted=True), "the answer's text in other ids, and what follows it"))
    for piece, words in parts:
        figure.rect(16, figure.y, 14, 14, _look(piece)[0])
        figure.text(38, figure.y + 11, words, "small dim")
        figure.y += 19
    figure.y -= 6
