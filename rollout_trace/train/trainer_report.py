"""Assigns a trainer's numbers for rows to the steps that the rows were made of: ``trainer_report``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING, Any, TypeAlias

from rollout_trace.data.trainer_tokens import TRAINER_CHECKS, TRAINER_VALUES
from rollout_trace.file.annotate import append_notes, check_trainer_numbers, checked_note, files_with

if TYPE_CHECKING:
    from rollout_trace.data.tokens import FloatArray
    from rollout_trace.train.sequence import Sequence

    Row: TypeAlias = Sequence | Mapping[str, Any]


def trainer_report(
    path: str | os.PathLike[str],
    rows: Iterable[Row],
    logprobs: Iterable[Any] | None = None,
    *,
    entropy: Iterable[Any] | None = None,
    reference_logprobs: Iterable[Any] | None = None,
    loss_weights: Iterable[Any] | None = None,
) -> None:
    """Notes a trainer's numbers for rows of recorded trajectories, as ``Step.trainer_logprobs`` and so on.

    Each of the four arguments has one list, array or tensor per row, in the order of the rows, without padding. It has
    one number for each token of the row, or for each token from the first sampled one on (a response), or for each
    sampled token. A number belongs to the token at its position: if a trainer shifts by one, shift its numbers back
    first. Numbers for tokens that were not sampled are ignored. If a row was cut inside a completion, the remaining
    tokens of that completion get NaN. A later report wins, array by array.

    Args:
        path: path of the file that the rows were read from, or of its folder.
        rows: rows from ``Trajectory.sequences()``, or mappings with their ``trajectory_id``, ``step_ids``, ``spans``
            and ``token_ids``.
        logprobs: natural logarithm: the trainer's own logprob of each token.
        entropy: nats: entropy of the trainer's distribution at each token.
        reference_logprobs: natural logarithm: the reference model's logprob of each token.
        loss_weights: weight of each token in the loss.

    Raises:
        TypeError, ValueError: a row has no step ids, no numbers are given, or numbers do not fit their row; or the file
            lacks the row's trajectory or steps, or has fewer tokens in one. Nothing is noted then.
        FileNotFoundError, WriteError, OSError: as for ``rt.annotate``.
    """
    names = dict(zip(TRAINER_VALUES, (logprobs, entropy, reference_logprobs, loss_weights), strict=True))
    report_rows(path, rows, names)


def report_rows(
    path: str | os.PathLike[str],
    rows: Iterable[Row],
    names: Mapping[str, Iterable[Any] | None],
    *,
    is_known: bool = False,
) -> None:
    """Does what ``trainer_report`` does, with the numbers by the names of ``TRAINER_VALUES``.

    Args:
        is_known: the rows are of this file: it is not read to compare them.
    """
    given = {name: list(values) for name, values in names.items() if values is not None}
    if not given:
        raise ValueError("trainer_report() was given no numbers: give logprobs, one array for each row.")
    places = [_Place(row, at) for at, row in enumerate(rows)]
    for name, values in given.items():
        if len(values) != len(places):
            raise ValueError(f"there are {len(places)} rows and {name} of {len(values)}; give one array for each row.")
    found: dict[str, dict[str | int, dict[str, Any]]] = {}
    for at, place in enumerate(places):
        for name, values in given.items():
            for step, numbers in place.by_step(values[at], name):
                found.setdefault(place.trajectory_id, {}).setdefault(step, {})[name] = numbers
    _append(path, {one: checked_note(one, {"steps": steps}) for one, steps in found.items()}, is_known=is_known)


def _append(path: str | os.PathLike[str], notes: Mapping[str, Mapping[str, Any]], *, is_known: bool) -> None:
    by_file: dict[Any, list[Mapping[str, Any]]] = {}
    for file, ids in files_with(path, notes).items():
        by_file.setdefault(file, []).extend(notes[one] for one in ids)
    for file, some in () if is_known else by_file.items():
        check_trainer_numbers(file, some, may_be_cut=True)
    for file, some in by_file.items():
        append_notes(file, some)


class _Place:
    """Where the tokens of a row's steps stand in it."""

    def __init__(self, row: Row, at: int) -> None:
        self._name = f"rows[{at}]"
        self.trajectory_id: str = self._value(row, "trajectory_id")
        self._steps: SequenceOf[str] = self._value(row, "step_ids")
        self._spans: SequenceOf[tuple[int, int]] = [(begin, end) for begin, end in self._value(row, "spans")]
        self._length = len(self._value(row, "token_ids"))

    def _value(self, row: Row, name: str) -> Any:
        value = row.get(name) if isinstance(row, Mapping) else getattr(row, name, None)
        if value is None:
            raise TypeError(
                f"{self._name} ({type(row).__name__}) has no {name}: give rows of trajectory.sequences(), or mappings "
                "with trajectory_id, step_ids, spans and token_ids."
            )
        return value

    def by_step(self, values: Any, name: str) -> Iterable[tuple[str, FloatArray]]:
        """Each step with the numbers of its tokens in the row."""
        start = self._spans[0][0] if self._spans else 0
        sampled = sum(end - begin for begin, end in self._spans)
        numbers, where = _sampled_alone(values, self._spans, self._length, f"{name}[{self._name[5:-1]}]")
        if where is None:
            raise ValueError(
                f"{self._name} has {self._length} tokens, {self._length - start} from the first sampled one on, "
                f"{sampled} sampled; {name} has {len(numbers)} numbers for it. Give as many as one of these counts, "
                "without padding."
            )
        for step, (begin, end) in zip(self._steps, where, strict=True):
            yield step, TRAINER_CHECKS[name](numbers[begin:end], f"{name} of step {step}")


def _sampled_alone(
    values: Any, spans: SequenceOf[tuple[int, int]], length: int, name: str
) -> tuple[Any, list[tuple[int, int]] | None]:
    """The numbers as an array, and where in it the tokens of each span are; None where it fits no way of counting."""
    import numpy as np

    numbers = np.asarray(values.tolist() if hasattr(values, "tolist") else values)
    if numbers.ndim != 1:
        raise ValueError(f"{name} has the shape {list(numbers.shape)}; give one dimension, one number for each token.")
    start = spans[0][0] if spans else 0
    if len(numbers) in (length, length - start):
        shift = length - len(numbers)
        return numbers, [(begin - shift, end - shift) for begin, end in spans]
    if len(numbers) == sum(end - begin for begin, end in spans):
        ends = np.cumsum([end - begin for begin, end in spans]).tolist()
        return numbers, list(zip([0, *ends[:-1]], ends, strict=True))
    return numbers, None
