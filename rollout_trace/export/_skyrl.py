"""SkyRL: the output of its generators.

Shapes: SkyRL 0.4.0, ``GeneratorOutput`` in ``skyrl/train/generators/base.py``, as its ``validate_generator_output``,
``merge_stepwise_output`` and ``convert_to_training_input`` expect it.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from rollout_trace.data.model import CUT_OFF
from rollout_trace.export._exporter import exporting, listed
from rollout_trace.export._extras import experts_of_all, note_masks, parts_of_mask
from rollout_trace.export._rows import (
    all_have_logprobs,
    compare,
    count_lost,
    count_without_row,
    prompt_and_response,
    task_or_run,
    token_rows,
    with_steps,
)
from rollout_trace.train.sequences import sequences

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from typing_extensions import Unpack

    from rollout_trace.data.model import Step
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.export._exporter import Trajectories
    from rollout_trace.export._rows import RowOptions
    from rollout_trace.report import ExportReport, Strict
    from rollout_trace.train.selection import SequenceOptions
    from rollout_trace.train.sequence import Sequence, Sequences


Failed: TypeAlias = Literal["keep", "mask", "mask_group"]
_FAILED = frozenset({"failed", "aborted"})


def skyrl(
    trajectories: Trajectories,
    *,
    stepwise: bool = False,
    arrays: bool = False,
    failed: Failed = "keep",
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[RowOptions],
) -> dict[str, Any]:
    """Makes a ``GeneratorOutput``: one row for each sequence, or with ``stepwise=True`` for each step.

    Whatever the order of the trajectories, the rows of a group are consecutive, and within it those of each run, in the
    order of the steps, as SkyRL's trainer needs them. ``is_last_step`` is True on a run's last row, the only one with
    the reward: the trainer reads it there. ``stop_reasons`` are "stop" for every natural end (tool calls too) and
    "length", the two that SkyRL distinguishes; others are the server's own. A run with several rows is valid only in
    SkyRL's step-wise training (``step_wise_trajectories``).

    ``trajectory_ids`` are dicts: ``instance_id`` is the group (else the task's id, else the trajectory's own), and
    ``repetition_id`` the ``rollout_index``, or the next free number. For the trainer, convert them:
    ``[TrajectoryID(**one) for one in output["trajectory_ids"]]``. The trainer expects as many instances as it asked
    for, so trajectories opened inside a run have no instance: their rows are before the run's and share its advantage;
    their own rewards are left out and counted. If their run is not given, they are runs of the instance ``GROUP/NAME``.

    ``rollout_expert_indices`` has the routed experts of prompt and response of each row, [length - 1, layers, k]
    (uint8, int16 or int32): of all tokens but the last, which was not run through the model. The key is present only if
    every row has them without a gap, because SkyRL would replay expert 0 there. ``rollout_sample_support`` has the
    sampling masks, int32 [response length, width], -1 after the ids of each token and where nothing was sampled; the
    key is present if any row has a mask.

    Args:
        trajectories: one, or any iterable. Those without a reward are left out: SkyRL has no value for "not scored".
        stepwise: make a row for each step, with its whole prompt. SkyRL's ``merge_stepwise_output`` merges them into
            the rows of ``stepwise=False, linear=True``; it takes no routed experts.
        arrays: has no effect: SkyRL takes only arrays since 0.4.0. Kept for earlier callers.
        failed: what to do with runs whose status is ``failed`` or ``aborted``, or that have no row or no reward.
            ``keep``: treat them like other runs. ``mask``: replace each with one row that does not train, so that the
            trainer gets as many runs of a prompt as it asked for: the prompt's ids (or ``[0]``, also if they exceed
            ``max_prompt_length`` or ``max_length``), the response ``[0]`` with mask 0, the stop reason "error", and the
            run's reward, or 0.0. This reward counts in the group's baseline. ``mask_group``: mask all runs of a group
            with such a run, as SkyRL's generator for Harbor does. Rows of sub-agents that failed, or whose run is
            masked, are left out.
        report: counts what is left out, and notes masked runs. ``rollout_logprobs`` has all rows or none: one step
            without logprobs makes it None.
        **options: those of ``Trajectory.sequences()``, and ``drop_constant_groups``; ``reward`` must be "last".

    Raises:
        ValueError: ``reward`` is not "last", ``failed`` is unknown, an option has an unknown value, or a step's
            ``advantage`` does not fit its completion.
    """
    if options.setdefault("reward", "last") != "last":
        raise ValueError(f"reward={options['reward']!r}: SkyRL takes a trajectory's reward on its last row: 'last'.")
    if failed not in ("keep", "mask", "mask_group"):
        raise ValueError(f"failed={failed!r}: expected 'keep', 'mask' or 'mask_group'.")
    with exporting("skyrl", strict, report) as counts:
        rows = list(_rows(trajectories, stepwise, failed, counts, options))
        has_logprobs = all_have_logprobs([row.rollout_logprobs for row in rows], counts)
        experts, supports = _experts(rows, counts), _supports(rows, counts)
    columns: dict[str, Any] = {name: [getattr(row, name) for row in rows] for name in _Row._fields if name != "source"}
    if experts is not None:
        columns["rollout_expert_indices"] = experts
    if supports is not None:
        columns["rollout_sample_support"] = supports
    return {
        **columns,
        "rollout_logprobs": columns["rollout_logprobs"] if has_logprobs else None,
        "rollout_metrics": None,
    }


class _Row(NamedTuple):
    prompt_token_ids: list[int]
    response_ids: list[int]
    loss_masks: list[int]
    stop_reasons: str | None
    rollout_logprobs: list[float] | None
    source: tuple[Sequence, int | None] | None = None
    """The sequence, and where the row ends in it (None: at its end); None for a masked row."""
    # Set when the rows are in their order.
    rewards: float = 0.0
    trajectory_ids: dict[str, Any] | None = None
    is_last_step: bool = False


class _Run(NamedTuple):
    """A run with the rows of its own, behind those of the trajectories that were opened inside it."""

    trajectory: Trajectory
    rows: list[_Row]
    is_masked: bool


def _rows(
    trajectories: Trajectories,
    stepwise: bool,
    failed: Failed,
    report: ExportReport,
    options: RowOptions,
) -> Iterator[_Row]:
    compared = compare(trajectories, report, options)
    given = list(compared.trajectories)
    roots = _roots(given)
    masked: frozenset[str] = frozenset()
    if failed == "mask_group":
        masked = _groups_with_failures([one for one in given if roots[one.id] == one.id], compared.options)
    # A run without steps can have a row only if it is masked.
    source = with_steps(given, report) if failed == "keep" else _counted(given, report)
    runs: list[_Run] = []
    inner: dict[str, list[_Row]] = {}
    for trajectory, found in token_rows(source, report, compared.options):
        rows = list(_made(trajectory, found, stepwise, report))
        where = f"trajectory {trajectory.id}"
        if roots[trajectory.id] != trajectory.id:
            report.drop("rewards of sub-agents", trajectory.reward is not None, where=where)
            if failed != "keep" and trajectory.status in _FAILED:
                report.drop("rows of sub-agents that failed", len(rows), where=where)
            else:
                inner.setdefault(roots[trajectory.id], []).extend(rows)
            continue
        rows = [] if trajectory.reward is None else rows
        in_masked_group = bool(rows) and TrajectoryIds.instance_of(trajectory) in masked
        is_masked = failed != "keep" and (in_masked_group or trajectory.status in _FAILED or not rows)
        if is_masked:
            report.note("runs that are masked", 1)
            rows = [_masked(trajectory, compared.options)]
        elif trajectory.reward is None:
            report.drop("trajectories without a reward", where=where)
        elif not rows:
            count_without_row(trajectory, report)
        runs.append(_Run(trajectory, rows, is_masked))
    yield from _in_groups(runs, inner, report)


def _in_groups(runs: list[_Run], inner: dict[str, list[_Row]], report: ExportReport) -> Iterator[_Row]:
    """The rows of all runs, those of one instance together: SkyRL's trainer refuses any other order."""
    ids = TrajectoryIds()
    groups: dict[str, list[_Run]] = {}
    for run in runs:
        if run.rows:
            groups.setdefault(TrajectoryIds.instance_of(run.trajectory), []).append(run)
    for run in (run for group in groups.values() for run in group):
        within = inner.pop(run.trajectory.id, [])
        if run.is_masked:
            report.drop("rows of sub-agents of runs that are masked", len(within))
            within = []
        rows = [*within, *run.rows]
        # No id without rows: the numbers are for the runs that the trainer gets.
        trajectory_id = ids.of(run.trajectory)
        for position, row in enumerate(rows):
            last = position == len(rows) - 1
            reward = float(run.trajectory.reward or 0.0) if last else 0.0
            yield row._replace(rewards=reward, trajectory_ids=trajectory_id, is_last_step=last)
    report.drop("rows of sub-agents of runs without a row", sum(map(len, inner.values())))


def _roots(trajectories: list[Trajectory]) -> dict[str, str]:
    """For each trajectory, by id, the outermost of those around it that are given; its own id where none is."""
    parents = {one.id: one.parent_id for one in trajectories}
    roots = {}
    for own in parents:
        root, seen = own, {own}
        while (parent := parents[root]) is not None and parent in parents and parent not in seen:
            root = parent
            seen.add(parent)
        roots[own] = root
    return roots


def _made(trajectory: Trajectory, sequences: Sequences, stepwise: bool, report: ExportReport) -> Iterator[_Row]:
    count_lost(trajectory, sequences, report, "routed_experts", "sampling_mask")
    yield from _steps(trajectory, sequences) if stepwise else _merged(trajectory, sequences)


def _counted(trajectories: Iterable[Trajectory], report: ExportReport) -> Iterator[Trajectory]:
    for trajectory in trajectories:
        yield trajectory
        report.read_one()


def _groups_with_failures(runs: Iterable[Trajectory], options: SequenceOptions) -> frozenset[str]:
    return frozenset(
        TrajectoryIds.instance_of(run)
        for run in runs
        if run.status in _FAILED or run.reward is None or not sequences(run, **options)
    )


def _masked(trajectory: Trajectory, options: SequenceOptions) -> _Row:
    """One row without a token to learn from. SkyRL needs a response of at least one token."""
    limits = [limit for limit in (options.get("max_prompt_length"), options.get("max_length")) if limit is not None]
    first = next((step.prompt_token_ids for step in trajectory.steps if step.prompt_token_ids is not None), None)
    fits = first is not None and 0 < len(first) <= min(limits, default=len(first))
    prompt = listed(first) if fits else [0]
    return _Row(prompt, [0], [0], "error", [0.0])


def _experts(rows: list[_Row], report: ExportReport) -> list[Any] | None:
    """The experts of each row; None unless all have them; of a masked row, zeros."""
    found = experts_of_all([row.source for row in rows if row.source is not None], report)
    if found is None:
        return None
    import numpy as np

    dtype: np.dtype[Any] = found[0].dtype
    if dtype == np.uint16:
        # SkyRL's tensors are of uint8, int16 or int32.
        dtype = np.dtype(np.int16 if max(int(one.max(initial=0)) for one in found) < 1 << 15 else np.int32)
    waiting, (_, layers, k) = iter(found), found[0].shape
    return [
        np.zeros((len(row.prompt_token_ids), layers, k), dtype) if row.source is None else next(waiting).astype(dtype)
        for row in rows
    ]


def _supports(rows: list[_Row], report: ExportReport) -> list[Any] | None:
    """The sampling mask of each row's response: int32 [length, width], followed by -1; None where no row has one."""
    import numpy as np

    with_source = [row.source[0] for row in rows if row.source is not None]
    note_masks(with_source, report)
    widths = [int(one.sampling_mask.counts.max(initial=0)) for one in with_source if one.sampling_mask is not None]
    if not max(widths, default=0):
        return None
    supports = []
    for row in rows:
        support = np.full((len(row.response_ids), max(widths)), -1, np.int32)
        if row.source is not None and row.source[0].sampling_mask is not None:
            sequence, end = row.source
            stop = len(sequence.token_ids) if end is None else end
            (mask,) = parts_of_mask(row.source[0].sampling_mask, [(stop - len(row.response_ids), stop)])
            support[np.arange(max(widths)) < mask.counts[:, None]] = mask.ids
        supports.append(support)
    return supports


def _merged(trajectory: Trajectory, sequences: Sequences) -> Iterator[_Row]:
    steps = {step.id: step for step in trajectory.steps}
    for row in sequences:
        parts = prompt_and_response(row)
        reason = _stop_reason(steps[row.step_ids[-1]], row.truncated)
        yield _Row(parts.prompt_ids, parts.response_ids, parts.response_mask, reason, parts.logprobs, (row, None))


def _steps(trajectory: Trajectory, sequences: Sequences) -> Iterator[_Row]:
    """A row for each step that is in a sequence, in the order in which their calls began."""
    places: dict[str, tuple[Sequence, int, int]] = {}
    for row in sequences:
        for step_id, (start, end) in zip(row.step_ids, row.spans, strict=True):
            places[step_id] = row, start, end
    for step in trajectory.steps:
        if step.id not in places:
            continue
        row, start, end = places[step.id]
        # A row may also be cut in a prompt after this step: then the step itself is whole.
        cut = row.truncated and end == len(row.token_ids)
        ids = listed(row.token_ids[:start]), listed(row.token_ids[start:end])
        logprobs = None if row.logprobs is None else listed(row.logprobs[start:end])
        yield _Row(*ids, [1] * (end - start), _stop_reason(step, cut), logprobs, (row, end))


_NATURAL_ENDS = frozenset(
    {"stop", "tool_calls", "function_call", "completed", "end_turn", "stop_sequence", "tool_use", "eos"}
)


def _stop_reason(step: Step, truncated: bool) -> str | None:
    if truncated or step.finish_reason in CUT_OFF:
        return "length"
    return "stop" if step.finish_reason in _NATURAL_ENDS else step.finish_reason


class TrajectoryIds:
    """Unique ids for trajectories: the trainer groups rows by ``instance_id`` and needs distinct ``repetition_id``."""

    def __init__(self) -> None:
        self._taken: dict[str, set[int]] = {}
        # Where the search for a free number continues: starting at 0 each time would be quadratic in the runs.
        self._free: dict[str, int] = {}

    @staticmethod
    def instance_of(trajectory: Trajectory) -> str:
        """The group, else the task's id, else the trajectory's own; with the agent's name for one inside another."""
        instance = task_or_run(trajectory)
        return instance if trajectory.parent_id is None else f"{instance}/{trajectory.name}"

    def of(self, trajectory: Trajectory) -> dict[str, Any]:
        """The ids of a trajectory; no two calls give the same."""
        instance = self.instance_of(trajectory)
        taken = self._taken.setdefault(instance, set())
        number = trajectory.rollout_index
        if number is None or number in taken:
            number = next(free for free in count(self._free.get(instance, 0)) if free not in taken)
            self._free[instance] = number + 1
        taken.add(number)
        return {"instance_id": instance, "repetition_id": number}
