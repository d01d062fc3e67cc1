"""Batches of rows as arrays: padded to one length, or packed one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, SupportsIndex, TypeAlias

from rollout_trace.export._exporter import RowIterator
from rollout_trace.export._rows import (
    check_row_options,
    compare,
    row_advantages,
    run_facts,
    sampling_facts,
    training_rows,
)
from rollout_trace.export._trl import NO_LOSS
from rollout_trace.export._values import within_float32
from rollout_trace.train.selection import is_count

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from rollout_trace.data.tokens import FloatArray
    from rollout_trace.export._exporter import Trajectories
    from rollout_trace.export._rows import Advantages, RowOptions
    from rollout_trace.report import ExportReport, Strict
    from rollout_trace.train.sequence import Sequence

Layout: TypeAlias = Literal["padded", "packed"]


def batches(
    trajectories: Trajectories,
    *,
    batch_size: int,
    layout: Layout = "padded",
    length: int | None = None,
    pad_id: int = 0,
    side: Literal["right", "left"] = "right",
    multiple_of: int = 1,
    advantages: Advantages | None = None,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[RowOptions],
) -> RowIterator:
    """Yields batches of training rows, made on demand: numpy arrays [rows, length] for ``torch.from_numpy``.

    ``padded``: one sequence per row, filled up with ``pad_id``. ``packed``: a row of ``length`` tokens holds as many
    consecutive sequences as fit, in their order; no sequence is split.

    - ``input_ids`` int64; ``labels`` int64: the same ids where the model sampled them, -100 elsewhere
    - ``attention_mask`` int64: 1 on tokens, 0 on padding. It does not separate packed sequences: restrict attention
      with ``sequence_ids``, ``position_ids`` or ``cu_seqlens``
    - ``position_ids`` int64: from 0 in each sequence; 0 on padding
    - ``sequence_ids`` int64: the index of the token's sequence in the lists below; -1 on padding
    - ``loss_mask`` float32: 1.0 where the model sampled the token
    - ``logprobs`` float32: 0.0 on tokens that were not sampled, and on padding; NaN on sampled tokens for which the
      engine gave none
    - ``rewards`` float32 [sequences], NaN if not scored; ``advantages`` float32 [rows, length], if requested
    - ``cu_seqlens``, in ``packed`` batches: for each row an int32 array of the positions where its sequences begin and
      where the last one ends, as FlashAttention's variable-length functions take it
    - lists with one entry per sequence: ``trajectory_id``, ``group_id``, ``rollout_index``, ``step_ids``,
      ``truncated``, ``temperature``, ``logprobs_mode``, ``token_source``

    Args:
        batch_size: rows per batch; the last batch may have fewer.
        layout: ``padded`` or ``packed``.
        length: length of the rows. Required for ``packed``; without it, ``padded`` rows are as long as the longest
            sequence of their batch. Longer sequences are an error: truncate them with ``max_length``, which the report
            counts.
        pad_id: the token id to pad with.
        side: where padding is added; ``left`` is for ``padded`` batches only.
        multiple_of: if ``length`` is not given, round lengths up to a multiple of this.
        advantages: ``steps``: those set on the steps; ``grpo`` or ``leave_one_out``: computed for each run within its
            group, for which all trajectories are read first. Sequences without an advantage are left out.
        report: counts what is left out, what ``max_length`` cut off, and what has no logprobs.
        **options: those of ``Trajectory.sequences()``, among them ``max_length``; and ``drop_constant_groups``.

    Raises:
        TypeError, ValueError: at once for an option that is unknown or has an unknown value; at its batch for a
            sequence longer than ``length``, or a step's ``advantage`` that does not fit its completion.
    """
    shape = _Shape(batch_size, layout, length, pad_id, side, multiple_of)
    _check(shape)
    check_row_options(options, advantages, "grpo", "leave_one_out", "steps", None)
    return RowIterator(
        "batches", strict, report, lambda counts, _: _batches(_rows(trajectories, advantages, counts, options), shape)
    )


class _Shape(NamedTuple):
    batch_size: int
    layout: str
    length: int | None
    pad_id: int
    side: str
    multiple_of: int


class _Row(NamedTuple):
    sequence: Sequence
    reward: float | None
    advantages: FloatArray | None
    facts: dict[str, Any]


def _check(shape: _Shape) -> None:
    batch_size, layout, length, pad_id, side, multiple_of = shape
    if layout not in ("padded", "packed"):
        raise ValueError(f"layout={layout!r}: expected 'padded' or 'packed'.")
    if side not in ("right", "left"):
        raise ValueError(f"side={side!r}: expected 'right' or 'left'.")
    if layout == "packed" and side == "left":
        raise ValueError("side='left' is for layout='padded': packed rows are padded on the right.")
    if layout == "packed" and length is None:
        raise ValueError("layout='packed' needs length=, the number of tokens in a row.")
    for name, value in (("batch_size", batch_size), ("length", length), ("multiple_of", multiple_of)):
        if value is not None and not is_count(value):
            raise ValueError(f"{name}={value!r}: expected a whole number of at least 1.")
    if not isinstance(pad_id, SupportsIndex) or isinstance(pad_id, bool):
        raise TypeError(
            f"pad_id={pad_id!r}: expected a token id. If the tokenizer has none for padding, give its end-of-text id: "
            "masks and labels leave padding out."
        )


def _rows(
    trajectories: Trajectories, advantages: Advantages | None, report: ExportReport, options: RowOptions
) -> Iterator[_Row]:
    compared = compare(trajectories, report, options, advantages)
    taken = ["step advantages"] if advantages == "steps" else []
    for trajectory, row in training_rows(compared, report, *taken):
        found = row_advantages(row, advantages, compared.advantages.get(trajectory.id))
        where = f"trajectory {trajectory.id}"
        if advantages is not None and found is None:
            report.drop("rows without an advantage", where=where)
            continue
        report.drop("rows without logprobs", row.logprobs is None, where=where)
        facts = {
            **run_facts(trajectory),
            "step_ids": list(row.step_ids),
            "truncated": row.truncated,
            **sampling_facts(row, report),
            "token_source": row.token_source,
        }
        yield _Row(row, within_float32(row.reward, report, where), found, facts)


def _batches(rows: Iterator[_Row], shape: _Shape) -> Iterator[dict[str, Any]]:
    """First fit: each sequence goes into the first row of the batch that has room for it."""
    bins: list[list[_Row]] = []
    room: list[int] = []
    for row in rows:
        size = len(row.sequence.token_ids)
        if shape.length is not None and size > shape.length:
            raise ValueError(
                f"trajectory {row.facts['trajectory_id']!r} has a sequence of {size} tokens, more than "
                f"length={shape.length}. Give max_length={shape.length}: it cuts the sequence and counts what is cut."
            )
        fits = next((at for at, left in enumerate(room) if left >= size), None) if shape.layout == "packed" else None
        if fits is None:
            if len(bins) == shape.batch_size:
                yield _batch(bins, shape)
                bins, room = [], []
            bins.append([])
            room.append(shape.length or 0)
            fits = len(bins) - 1
        bins[fits].append(row)
        room[fits] -= size
    if bins:
        yield _batch(bins, shape)


def _batch(bins: list[list[_Row]], shape: _Shape) -> dict[str, Any]:
    import numpy as np

    rows = [row for part in bins for row in part]
    length = shape.length
    if length is None:
        longest = max(len(row.sequence.token_ids) for row in rows)
        length = -(-longest // shape.multiple_of) * shape.multiple_of
    size = (len(bins), length)
    arrays = {name: np.full(size, fill, dtype) for name, (fill, dtype) in _arrays(shape.pad_id).items()}
    if rows[0].advantages is not None:
        arrays["advantages"] = np.zeros(size, np.float32)
    number = 0
    for at, part in enumerate(bins):
        begin = length - len(part[0].sequence.token_ids) if shape.side == "left" else 0
        for row in part:
            end = begin + len(row.sequence.token_ids)
            for name, values in _values(row, number).items():
                arrays[name][at, begin:end] = values
            begin, number = end, number + 1
    facts = {name: [row.facts[name] for row in rows] for name in rows[0].facts}
    rewards = np.array([np.nan if row.reward is None else row.reward for row in rows], np.float32)
    batch = {**arrays, "rewards": rewards, **facts}
    if shape.layout == "packed":
        lengths = [[len(row.sequence.token_ids) for row in part] for part in bins]
        batch["cu_seqlens"] = [np.cumsum([0, *part], dtype=np.int32) for part in lengths]
    return batch


def _arrays(pad_id: int) -> dict[str, tuple[Any, str]]:
    """Name, padding and type of each array."""
    ints = {"input_ids": pad_id, "labels": NO_LOSS, "attention_mask": 0, "position_ids": 0, "sequence_ids": -1}
    return {
        **{name: (fill, "int64") for name, fill in ints.items()},
        "loss_mask": (0.0, "float32"),
        "logprobs": (0.0, "float32"),
    }


def _values(row: _Row, number: int) -> dict[str, Any]:
    import numpy as np

    sequence = row.sequence
    unknown = np.where(sequence.loss_mask, np.float32(np.nan), np.float32(0.0))
    values = {
        "input_ids": sequence.token_ids,
        "labels": np.where(sequence.loss_mask, sequence.token_ids, NO_LOSS),
        "attention_mask": 1,
        "position_ids": np.arange(len(sequence.token_ids)),
        "sequence_ids": number,
        "loss_mask": sequence.loss_mask,
        "logprobs": unknown if sequence.logprobs is None else sequence.logprobs,
    }
    return values if row.advantages is None else {**values, "advantages": row.advantages}
