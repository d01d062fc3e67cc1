"""NeMo-RL: message logs of token ids.

Shapes: NeMo-RL (git 7ea279ab of 2026-08-22; sampling masks: a later commit), ``DatumSpec`` in
``nemo_rl/data/interfaces.py``, and the logs of ``nemo_rl/environments/nemo_gym.py`` and
``nemo_rl/models/policy/sampling_mask_replay.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_trace.export._exporter import Exporter, RowIterator, copied
from rollout_trace.export._extras import note_masks, parts_of_mask, rectangle, sampled_versions, whole_numbers
from rollout_trace.export._rows import (
    check_row_options,
    compare,
    count_lost,
    has_logprobs,
    run_facts,
    sampling_facts,
    scored_or_none,
    scored_rows,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from typing_extensions import Unpack

    from rollout_trace.data.tokens import IntArray
    from rollout_trace.export._exporter import Row, Trajectories
    from rollout_trace.export._rows import RowOptions
    from rollout_trace.report import ExportReport, Strict
    from rollout_trace.train.sequence import Sequence


@Exporter
def nemo_rl(
    trajectories: Trajectories,
    *,
    mask_width: int | None = None,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[RowOptions],
) -> RowIterator:
    """Exports NeMo-RL's ``DatumSpec``, one dict for each sequence, with the message log of a finished rollout.

    ``message_log`` has a message of role ``assistant`` for each completion, and one of role ``user`` for the tokens
    read before it; their ``content`` is empty, as in NeMo-RL's own logs for NeMo-Gym. A message has these arrays, with
    one row per token; convert them with ``torch.from_numpy``:

    - ``token_ids``: int64
    - ``generation_logprobs``: float32, on ``assistant`` alone; NeMo-RL trains on the messages that have it
    - ``routed_experts``: int16 [tokens, layers, k] (int32 if the engine's ids are wider than a byte), -1 where the
      engine gave none, which includes the last sampled token: the model's own router chooses there
    - ``sampling_mask_token_ids`` int32 [tokens, width], padded with zeros, and ``sampling_mask_sizes`` int32 [tokens],
      on ``assistant`` alone: the ids that could be sampled

    Beside it: ``length`` in tokens, ``loss_multiplier`` 1.0, ``idx`` (the row's number), ``extra_env_info`` None,
    ``total_reward``, ``weight_version`` (an integer; None if unknown, or if the row has several), and
    ``trajectory_id``, ``group_id``, ``rollout_index``, ``rewards`` by name, ``temperature``, ``logprobs_mode``.

    NeMo-RL rejects runs whose prompts do not repeat what came before; here each of their sequences is its own row. Rows
    without logprobs are left out. If some trajectories are scored, the unscored ones have no row; if none is,
    ``total_reward`` is None.

    Args:
        mask_width: width of ``sampling_mask_token_ids``, which must be the same throughout a NeMo-RL batch. None: the
            largest number of ids at any token of these rows.

    Raises:
        ValueError: ``mask_width`` is too small, an option has an unknown value, or a step's ``advantage`` does not fit
            its completion.
    """
    check_row_options(options)
    return RowIterator("nemo_rl", strict, report, lambda counts, _: _data(trajectories, mask_width, counts, options))


def _data(
    trajectories: Trajectories, mask_width: int | None, report: ExportReport, options: RowOptions
) -> Iterator[Row]:
    found = scored_rows(compare(trajectories, report, options), report)
    complete = [(trajectory, row) for trajectory, rows in found for row in rows if has_logprobs(row, report)]
    pairs = scored_or_none(complete, report)
    rows = [row for _, row in pairs]
    # One type of experts and one width of masks for all rows: NeMo-RL concatenates those of a batch.
    width = _width(rows, mask_width)
    dtype = _expert_type(rows)
    note_masks(rows, report)
    taken = "routed_experts", "sampling_mask", "policy versions", "rewards by name"
    for at, (trajectory, row) in enumerate(pairs):
        count_lost(trajectory, [row], report, *taken)
        yield {
            "message_log": _message_log(row, dtype, width),
            "length": len(row.token_ids),
            "loss_multiplier": 1.0,
            "idx": at,
            "extra_env_info": None,
            "total_reward": row.reward,
            "weight_version": _version(row, report),
            **run_facts(trajectory),
            "rewards": copied(trajectory.rewards),
            **sampling_facts(row, report),
        }


def _width(rows: list[Sequence], wanted: int | None) -> int:
    needed = max((int(row.sampling_mask.counts.max()) for row in rows if row.sampling_mask is not None), default=0)
    if wanted is not None and wanted < needed:
        raise ValueError(f"mask_width={wanted}: a sampling mask has {needed} ids at one token; give at least as many.")
    return needed if wanted is None else wanted


def _expert_type(rows: list[Sequence]) -> type[np.signedinteger[Any]]:
    """A signed type for the experts of all rows: -1 stands for a missing one."""
    import numpy as np

    sizes = [row.routed_experts.dtype.itemsize for row in rows if row.routed_experts is not None]
    return np.int32 if max(sizes, default=1) > 1 else np.int16


def _message_log(row: Sequence, dtype: type[np.signedinteger[Any]], width: int) -> list[dict[str, Any]]:
    log: list[dict[str, Any]] = []
    experts = _experts(row, dtype)
    masks = None if row.sampling_mask is None else parts_of_mask(row.sampling_mask, row.spans)
    done = 0
    for number, (begin, end) in enumerate(row.spans):
        log += _message("user", row, done, begin, experts)
        (answer,) = _message("assistant", row, begin, end, experts)
        answer["generation_logprobs"] = row.logprobs[begin:end].copy()  # type: ignore[index]
        if masks is not None:
            answer["sampling_mask_token_ids"] = rectangle(masks[number], width)
            answer["sampling_mask_sizes"] = masks[number].counts.copy()
        log.append(answer)
        done = end
    # A row that `max_length` cut may end in a prompt.
    return log + _message("user", row, done, len(row.token_ids), experts)


def _message(role: str, row: Sequence, begin: int, end: int, experts: IntArray | None) -> list[dict[str, Any]]:
    """The message of these positions; none where there is no token."""
    if begin == end:
        return []
    message: dict[str, Any] = {"role": role, "content": "", "token_ids": row.token_ids[begin:end].astype("int64")}
    if experts is not None:
        message["routed_experts"] = experts[begin:end]
    return [message]


def _experts(row: Sequence, dtype: type[np.signedinteger[Any]]) -> IntArray | None:
    """[length, layers, k] in this type, -1 where the engine gave none; None where the row has none."""
    if row.routed_experts is None or row.routed_experts_mask is None:
        return None
    experts: IntArray = row.routed_experts.astype(dtype)
    experts[row.routed_experts_mask == 0] = -1
    return experts


def _version(row: Sequence, report: ExportReport) -> int | None:
    """The version of all sampled tokens of the row; None where it is no whole number, or there are several."""
    where = f"step {row.step_ids[0]}"
    known = sum(version is not None for version in row.policy_versions)
    numbers = set(whole_numbers(sampled_versions(row), known, report, "rows", where))
    if len(numbers) > 1:
        report.drop("policy versions of rows with several", len(row.policy_versions), where=where, metadata=True)
    return numbers.pop() if len(numbers) == 1 else None
