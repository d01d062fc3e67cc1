"""Distillation: rows of token ids with a teacher's likeliest tokens at each position, as rectangular arrays.

Shapes: ``VLLMClient.get_sequence_logprobs`` of TRL 1.16 (``trl/generation/vllm_client.py``), whose order and filler the
rows have, and ``teacher_ids`` and ``teacher_logprobs`` of verl 0.9.1 (``verl/experimental/teacher_loop``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from rollout_trace.data.extras import TopTokens
from rollout_trace.data.tokens import common_prefix
from rollout_trace.export._exporter import Exporter, RowIterator, owned
from rollout_trace.export._rows import check_row_options, compare, each, training_rows
from rollout_trace.train.extras import misfit
from rollout_trace.train.sequence import common_value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Unpack

    from rollout_trace.data.model import Step
    from rollout_trace.data.tokens import FloatArray
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.export._exporter import Row, Trajectories
    from rollout_trace.export._rows import RowOptions
    from rollout_trace.report import ExportReport, Strict
    from rollout_trace.train.sequence import Sequence

Source: TypeAlias = Literal["prompt", "sampled"]
TeacherOption: TypeAlias = "str | Callable[[Step], bool] | None"

COLUMNS = {
    "input_ids": "list<int32>",
    "loss_mask": "list<int8>",
    "topk_ids": "list<list<int32>>",
    "topk_logprobs": "list<list<float32>>",
    "teacher_logprobs": "list<float32>",
    "teacher": "string",
    "reward": "float64",
    "trajectory_id": "string",
}
WIRE_INFINITY = -9999.0
"""What vLLM sends for a logprob of minus infinity."""


@Exporter
def distillation(
    trajectories: Trajectories,
    *,
    k: int | None = None,
    teacher: TeacherOption = None,
    source: Source | None = None,
    filler: float = WIRE_INFINITY,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[RowOptions],
) -> RowIterator:
    """Exports rows for distillation: one for each sequence, with a teacher's likeliest tokens at each position.

    Each has ``input_ids`` and ``loss_mask`` [length]; ``topk_ids`` and ``topk_logprobs`` ``[length][k]``, likeliest
    first; ``teacher_logprobs`` [length]: the teacher's logprob of the row's own token; ``teacher``, ``reward`` and
    ``trajectory_id``. Position i describes token i given the tokens before it. Row i of logits predicts token i + 1, so
    use ``topk_ids[1:]`` with ``logits[:-1]``. Where nothing is known (always at position 0) and beyond the tokens known
    at a position, ids are 0 and logprobs are ``filler``.

    A teacher scores rows as prompts, after the rollouts: request ``prompt_logprobs`` of ``sequence.token_ids`` from its
    server, under the same recording. The teacher's calls are recognised by ``teacher``, are not exported as rows, and
    are matched with the rows by token ids::

        teacher.completions.create(model="teacher-32b", prompt=row.token_ids.tolist(), max_tokens=1,
                                   extra_body={"prompt_logprobs": 20, "return_token_ids": True})
        rows = export.distillation(trajectories, teacher="teacher-32b", k=20)

    Args:
        trajectories: one, or any iterable. With ``teacher``, all are read before the first row, and its calls may be in
            other trajectories than the rows.
        k: number of tokens at each position. None: the largest number that any position of the row has; vLLM's
            ``prompt_logprobs=k`` returns k + 1 where the prompt's own token is not among the k likeliest.
        teacher: model name in the teacher's calls, or a function that returns True for its steps. None: the tokens are
            those of the rows' own steps, and ``teacher`` in the rows is the steps' model.
        source: ``prompt``: tokens as scored in a prompt; ``sampled``: as listed when they were sampled
            (``top_logprobs``). None: ``prompt`` with a ``teacher``; without one, ``sampled`` for rows that have it.
        filler: the logprob used where nothing is known, or where the token was excluded. The default is vLLM's number
            for minus infinity: losses that multiply probability and logprob (verl's) need a finite one. TRL's losses
            take ``float("-inf")``, which marks positions without tokens; JSON cannot hold it.
        report: counts what is left out: rows without any scores, and sampled tokens without scores in the other rows.

    Raises:
        ValueError: ``k``, ``source``, ``filler`` or an option has an invalid value, or a step's ``advantage`` does not
            fit its completion.
    """
    settings = _settings(k, teacher, source, filler)
    check_row_options(options)

    def make(counts: ExportReport, raw: bool) -> Iterable[Row]:
        if raw and not math.isfinite(filler):
            raise ValueError(f"filler={filler!r}: files need a finite number, such as -9999.0.")
        return owned(_rows(trajectories, settings, counts, options), raw)

    return RowIterator("distillation", strict, report, make, COLUMNS)


class _Settings(NamedTuple):
    k: int | None
    teacher: TeacherOption
    source: Source | None
    filler: float


def _settings(k: int | None, teacher: TeacherOption, source: Source | None, filler: float) -> _Settings:
    if k is not None and (type(k) is not int or k < 1):
        raise ValueError(f"k={k!r}: expected a number of tokens from 1 on, or None for all.")
    if source not in (None, "prompt", "sampled"):
        raise ValueError(f"source={source!r}: expected 'prompt', 'sampled' or None.")
    if source == "sampled" and teacher is not None:
        raise ValueError("source='sampled' with a teacher: a teacher scores rows as prompts, so use source='prompt'.")
    if math.isnan(filler):
        raise ValueError("filler=nan: expected a number, or minus infinity.")
    return _Settings(k, teacher, source, filler)


class _Scores(NamedTuple):
    """What is known of a row's positions."""

    top: TopTokens | None
    own: FloatArray | None
    """Logprob of the row's own tokens, NaN where it is not known."""
    teacher: str | None


def _rows(trajectories: Trajectories, settings: _Settings, report: ExportReport, options: RowOptions) -> Iterator[Row]:
    scores: TeacherScores | None = None
    if settings.teacher is not None:
        runs = list(each(trajectories))
        scores = TeacherScores(runs, settings.teacher)
        trajectories = [run for one in runs if (run := _without_teacher(one, settings.teacher)) is not None]
    compared = compare(trajectories, report, options)
    for trajectory, row in training_rows(compared, report, "top_tokens", "prompt_logprobs", "prompt_top_tokens"):
        known = _own_scores(trajectory, row, settings.source) if scores is None else scores.of(row, trajectory)
        made = _row(row, known, settings, report)
        if made is not None:
            yield {**made, "reward": row.reward, "trajectory_id": trajectory.id}


def _without_teacher(trajectory: Trajectory, teacher: TeacherOption) -> Trajectory | None:
    """The trajectory without the teacher's steps; None where it has no others, and nothing is to be counted."""
    steps = [step for step in trajectory.steps if not is_teacher(step, teacher)]
    if len(steps) == len(trajectory.steps):
        return trajectory
    return replace(trajectory, steps=steps) if steps else None


def _own_scores(trajectory: Trajectory, row: Sequence, source: Source | None) -> _Scores:
    """The scores that the row's own steps have."""
    import numpy as np

    ids = set(row.step_ids)
    model = common_value(step.model for step in trajectory.steps if step.id in ids)
    if source == "sampled" or (source is None and row.top_tokens is not None):
        own = None if row.logprobs is None else np.where(row.loss_mask, row.logprobs, np.float32(np.nan))
        return _Scores(row.top_tokens, own if row.top_tokens is not None else None, model)
    return _Scores(row.prompt_top_tokens, row.prompt_logprobs, model)


def _row(row: Sequence, known: _Scores, settings: _Settings, report: ExportReport) -> dict[str, Any] | None:
    """The arrays of one row; None where nothing is known of it."""
    import numpy as np

    where = f"step {row.step_ids[0]}"
    if known.top is None and known.own is None:
        report.drop("rows without the teacher's scores", where=where)
        return None
    length = len(row.token_ids)
    ids, logprobs = ranked(known.top, length, settings.k, settings.filler)
    own = np.full(length, np.nan, np.float32) if known.own is None else known.own
    # A position counts as scored with either: with `prompt_logprobs=0` a server sends the own token's score alone.
    scored = ~np.isnan(own) if known.top is None else (known.top.ids >= 0).any(axis=1)
    missing = int(np.count_nonzero((row.loss_mask == 1) & ~scored))
    report.drop("sampled tokens without the teacher's scores", missing, where=where)
    return {
        "input_ids": row.token_ids,
        "loss_mask": row.loss_mask,
        "topk_ids": ids,
        "topk_logprobs": logprobs,
        "teacher_logprobs": np.where(own > WIRE_INFINITY, own, np.float32(settings.filler)),
        "teacher": known.teacher,
    }


def is_teacher(step: Step, teacher: TeacherOption) -> bool:
    """Whether a step is the teacher's: its request names that model, or the function returns True."""
    if teacher is None:
        return False
    return teacher(step) if callable(teacher) else teacher in (step.model, step.response_model)


class TeacherScores:
    """The prompts that a teacher scored, by their token ids and by trajectory."""

    def __init__(self, trajectories: Iterable[Trajectory], teacher: TeacherOption) -> None:
        self._name = teacher if isinstance(teacher, str) else None
        self._by_ids: dict[bytes, Step] = {}
        self._by_trajectory: dict[str, list[Step]] = {}
        for trajectory in trajectories:
            for step in trajectory.steps:
                if is_teacher(step, teacher) and step.prompt_token_ids is not None and _is_scored(step):
                    self._by_ids[step.prompt_token_ids.tobytes()] = step
                    self._by_trajectory.setdefault(trajectory.id, []).append(step)

    def of(self, row: Sequence, trajectory: Trajectory) -> _Scores:
        """Finds the scores of a row; none if no prompt fits.

        They are those of a prompt of the same ids, else of the prompt in its trajectory that shares the most ids with
        its beginning. A score is of the ids up to its position: it holds for every row that begins with them.
        """
        ids = row.token_ids
        step = self._by_ids.get(ids.tobytes())
        if step is not None:
            return self._cut(step, len(ids), len(ids))
        best, shared = None, 1
        for candidate in self._by_trajectory.get(trajectory.id, ()):
            assert candidate.prompt_token_ids is not None
            common = common_prefix(candidate.prompt_token_ids, ids)
            if common > shared:
                best, shared = candidate, common
        return _Scores(None, None, None) if best is None else self._cut(best, shared, len(ids))

    def _cut(self, step: Step, shared: int, length: int) -> _Scores:
        """The scores of the first ``shared`` positions, in arrays of ``length``."""
        top, own = step.prompt_top_tokens, step.prompt_logprobs
        nan = float("nan")
        if top is not None:
            top = TopTokens(_resized(top.ids, shared, length, -1), _resized(top.logprobs, shared, length, nan))
        return _Scores(top, None if own is None else _resized(own, shared, length, nan), self._name or step.model)


def _is_scored(step: Step) -> bool:
    assert step.prompt_token_ids is not None
    count = len(step.prompt_token_ids)
    has_any = step.prompt_top_tokens is not None or step.prompt_logprobs is not None
    return has_any and not any(misfit(step, name, count, 0) for name in ("prompt_top_tokens", "prompt_logprobs"))


def _resized(rows: Any, shared: int, length: int, filler: float) -> Any:
    import numpy as np

    if shared == length == len(rows):
        return rows
    resized = np.full((length, *rows.shape[1:]), filler, rows.dtype)
    resized[:shared] = rows[:shared]
    return resized


def ranked(top: TopTokens | None, length: int, k: int | None, filler: float) -> tuple[Any, Any]:
    """Ids int32 and logprobs float32 [length, k], likeliest first; 0 and ``filler`` elsewhere."""
    import numpy as np

    if top is None:
        return np.zeros((length, k or 0), np.int32), np.full((length, k or 0), filler, np.float32)
    # vLLM's minus infinity: the token was excluded, and is no likely one.
    known = (top.ids >= 0) & (top.logprobs > WIRE_INFINITY)
    keys = np.where(known, top.logprobs, -np.inf)
    # Stable: of equal logprobs the engine's order stays.
    order = np.argsort(-keys, axis=1, kind="stable")
    known = np.take_along_axis(known, order, axis=1)
    ids = np.where(known, np.take_along_axis(top.ids, order, axis=1), 0)
    values = np.where(known, np.take_along_axis(top.logprobs, order, axis=1), np.float32(filler))
    width = int(known.sum(axis=1).max(initial=0)) if k is None else k
    ids, values = ids[:, :width], values[:, :width]
    short = width - ids.shape[1]
    if short > 0:
        ids = np.pad(ids, ((0, 0), (0, short)))
        values = np.pad(values, ((0, 0), (0, short)), constant_values=filler)
    return ids, values
