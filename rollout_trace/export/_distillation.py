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
from rollout_trace.export._arrow import Rows
from rollout_trace.export._baselines import check_row_options, compare
from rollout_trace.export._common import each, exporting, one_by_one, plain, scored_rows
from rollout_trace.export._extras import count_extras
from rollout_trace.export._rows import count_unused, step_ids_of
from rollout_trace.train.extras import misfit
from rollout_trace.train.sequence import common_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from typing_extensions import Unpack

    from rollout_trace.data.extras import TopTokens
    from rollout_trace.data.model import Step
    from rollout_trace.data.tokens import FloatArray, IntArray
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.export._baselines import RowOptions
    from rollout_trace.report import ExportReport, Strict
    from rollout_trace.train.sequence import Sequence


Source: TypeAlias = Literal["prompt", "sampled"]

SCHEMA = {
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


def distillation(
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    k: int | None = None,
    teacher: TeacherOption = None,
    source: Source | None = None,
    filler: float = WIRE_INFINITY,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[RowOptions],
) -> Rows:
    """Rows for distillation: one for each sequence, with the likeliest tokens of a teacher at each position.

    Each has ``input_ids`` and ``loss_mask`` [length]; ``topk_ids`` and ``topk_logprobs`` ``[length][k]``, likeliest
    first; ``teacher_logprobs`` [length]: the teacher's logprob of the row's own token; ``teacher``, ``reward`` and
    ``trajectory_id``. Position i is about token i given those before it: for logits, whose row i predicts token i + 1,
    take ``topk_ids[1:]`` with ``logits[:-1]``. Where nothing is known, which is always so at position 0, and beyond the
    tokens that a position has, ids are 0 and logprobs ``filler``.

    A teacher scores rows as prompts, after the rollouts: ask its server for ``prompt_logprobs`` of
    ``sequence.token_ids``, under the same recording. Its calls are recognised by ``teacher``, are no part of the rows,
    and are matched with them by token ids::

        teacher.completions.create(model="teacher-32b", prompt=row.token_ids.tolist(), max_tokens=1,
                                   extra_body={"prompt_logprobs": 20, "return_token_ids": True})
        rows = export.distillation(trajectories, teacher="teacher-32b", k=20)

    Args:
        trajectories: one, or any iterable. With ``teacher``, all are read before the first row, and its calls may be in
            other trajectories than the rows.
        k: number of tokens at each position. None: as many as any position of the row has; vLLM's ``prompt_logprobs=k``
            has k + 1 where the prompt's own token is not among the k likeliest.
        teacher: the model that the teacher's calls name, or a function that returns True for its steps. None: the rows'
            own steps have the tokens, and ``teacher`` in the rows is the model that they name.
        source: ``prompt``: tokens as scored in a prompt; ``sampled``: as listed when they were sampled
            (``top_logprobs``). None: ``prompt`` with a ``teacher``; without, ``sampled`` for rows that have these.
        filler: the logprob where nothing is known, or the token was excluded. The default is vLLM's number for minus
            infinity: losses that multiply probability and logprob (verl's) need a finite one. TRL's losses take
            ``float("-inf")``, by which they know positions without tokens; JSON does not.
        strict: raise ExportError instead of leaving something out.
        report: counts what is left out: rows without any scores, and sampled tokens of the other rows without.
        **options: those of ``Trajectory.sequences()``, and ``drop_constant_groups``.

    Raises:
        ExportError: ``strict``, and something would be left out.
        ValueError: ``k``, ``source``, ``filler`` or an option has no such value, or a step's ``advantage`` does not fit
            its completion.
    """
    settings = _settings(k, teacher, source, filler)
    with exporting("distillation", strict, report) as counts:
        return Rows(map(_listed, _rows(trajectories, settings, counts, options)), SCHEMA)


def iter_distillation(
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    k: int | None = None,
    teacher: TeacherOption = None,
    source: Source | None = None,
    filler: float = WIRE_INFINITY,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[RowOptions],
) -> Iterator[dict[str, Any]]:
    """The rows of ``distillation``, each made on demand: as lists they take ten times the memory of their arrays."""
    settings = _settings(k, teacher, source, filler)
    check_row_options(options)
    rows = one_by_one(
        "iter_distillation", strict, report, lambda counts: _rows(trajectories, settings, counts, options)
    )
    return map(_listed, rows)


def write_distillation(
    path: str | Path,
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    k: int | None = None,
    teacher: TeacherOption = None,
    source: Source | None = None,
    filler: float = WIRE_INFINITY,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[RowOptions],
) -> int:
    """Writes the rows of ``distillation()`` for ``datasets.load_dataset``; returns how many.

    Args:
        path: must end with ``.jsonl``, ``.jsonl.gz``, ``.jsonl.zst`` or ``.parquet``.
        filler: a finite number, as JSON has no infinity.

    Raises:
        ExportError, ValueError: as ``distillation``; ValueError also for a filler that is not finite.
        ImportError, OSError: as ``write_jsonl`` and ``write_parquet``.
    """
    from rollout_trace.export._files import write_rows

    if not math.isfinite(filler):
        raise ValueError(f"filler={filler!r}: files need a finite number, such as -9999.0.")
    settings = _settings(k, teacher, source, filler)
    with exporting("write_distillation", strict, report) as counts:
        return write_rows(path, map(_listed, _rows(trajectories, settings, counts, options)), SCHEMA)


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


def _rows(
    trajectories: Trajectory | Iterable[Trajectory], settings: _Settings, report: ExportReport, options: RowOptions
) -> Iterator[dict[str, Any]]:
    scores: TeacherScores | None = None
    if settings.teacher is not None:
        runs = list(each(trajectories))
        scores = TeacherScores(runs, settings.teacher)
        trajectories = [run for one in runs if (run := _without_teacher(one, settings.teacher)) is not None]
    compared = compare(trajectories, report, options)
    for trajectory, rows in scored_rows(compared.trajectories, report, compared.options):
        count_unused(trajectory, step_ids_of(rows), report)
        count_extras(rows, report, "top_tokens", "prompt_logprobs", "prompt_top_tokens")
        models = {step.id: step.model for step in trajectory.steps}
        for row in rows:
            found = scores.of(row.token_ids, trajectory.id) if scores is not None else None
            known = _Scores(*found) if found is not None else _Scores(None, None, None)
            if scores is None:
                known = _own_scores(row, settings.source, common_value(models[step_id] for step_id in row.step_ids))
            made = _row(row, known, settings, report)
            if made is not None:
                yield {**made, "reward": row.reward, "trajectory_id": trajectory.id}


def _without_teacher(trajectory: Trajectory, teacher: TeacherOption) -> Trajectory | None:
    """The trajectory without the teacher's steps; None where it has no others, and nothing is to be counted."""
    steps = [step for step in trajectory.steps if not is_teacher(step, teacher)]
    if len(steps) == len(trajectory.steps):
        return trajectory
    return replace(trajectory, steps=steps) if steps else None


def _own_scores(row: Sequence, source: Source | None, model: str | None) -> _Scores:
    """The scores that the row's own steps have."""
    import numpy as np

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


def _listed(row: dict[str, Any]) -> dict[str, Any]:
    return {name: plain(value) if hasattr(value, "tolist") else value for name, value in row.items()}


TeacherOption: TypeAlias = "str | Callable[[Step], bool] | None"
Found: TypeAlias = "tuple[TopTokens | None, FloatArray | None, str | None]"
"""Likeliest tokens and own logprobs of a row's positions, and the teacher's model."""


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

    def of(self, ids: IntArray, trajectory_id: str) -> Found | None:
        """The scores of a row: those of a prompt of the same ids, else of the prompt in its trajectory that shares the
        most ids with its beginning; None where there is no such prompt.

        A score is of the ids up to its position: it holds for every row that begins with them.
        """
        step = self._by_ids.get(ids.tobytes())
        if step is not None:
            return self._cut(step, len(ids), len(ids))
        best, shared = None, 1
        for candidate in self._by_trajectory.get(trajectory_id, ()):
            assert candidate.prompt_token_ids is not None
            common = common_prefix(candidate.prompt_token_ids, ids)
            if common > shared:
                best, shared = candidate, common
        return None if best is None else self._cut(best, shared, len(ids))

    def _cut(self, step: Step, shared: int, length: int) -> Found:
        """The scores of the first ``shared`` positions, in arrays of ``length``."""
        top, own = step.prompt_top_tokens, step.prompt_logprobs
        name = self._name or step.model
        if top is not None:
            top = TopTokens(_resized(top.ids, shared, length, -1), _resized(top.logprobs, shared, length, float("nan")))
        return top, None if own is None else _resized(own, shared, length, float("nan")), name


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
