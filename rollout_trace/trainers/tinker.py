"""Converts groups of rollouts into data for Tinker's training client (tinker 0.38, ``tinker.Datum``)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

from rollout_trace.export import tinker
from rollout_trace.train.groups import Group

if TYPE_CHECKING:
    from rollout_trace.report import ExportReport


def data(
    groups: Group | Iterable[Group],
    *,
    advantages: Literal["grpo", "leave_one_out", "steps"] | None = "grpo",
    report: ExportReport | None = None,
    **options: Any,
) -> list[Any]:
    """Converts groups, such as those of ``rt.rollouts``, to ``Datum`` rows for ``TrainingClient.forward_backward``.

    A row whose samples ``rt.wrap_tinker`` recorded has its provenance (``Datum.with_provenance``). A run may have
    several rows, from drift, forks and trajectories opened inside it. Advantages that compare runs (``grpo``,
    ``leave_one_out``) leave out runs without a reward; a failed run with a reward is compared too.

    Args:
        groups: one group, or several, each with all its runs.
        advantages, report, options: as for ``rollout_trace.export.tinker``.

    Raises:
        ImportError: tinker cannot be imported.
        TypeError, ValueError: as for ``rollout_trace.export.tinker``.
    """
    try:
        from tinker import Datum, ModelInput
    except ImportError as error:
        raise ImportError(f"trainers.tinker needs tinker 0.38, which cannot be imported: {error}") from error
    given = (groups,) if isinstance(groups, Group) else groups
    runs = chain.from_iterable((*group.trajectories, *group.inside) for group in given)
    found = []
    for row in tinker.rows(runs, advantages=advantages, report=report, **options):
        datum = Datum(model_input=ModelInput.from_ints(row["model_input"]), loss_fn_inputs=row["loss_fn_inputs"])
        if "provenance" in row:
            datum = datum.with_provenance(**{name: _spans(runs) for name, runs in row["provenance"].items()})
        found.append(datum)
    return found


def _spans(runs: Iterable[dict[str, Any]]) -> list[Any]:
    from tinker import PromptProvenanceSpan, SampledProvenanceSpan

    kinds = {"prompt": PromptProvenanceSpan, "sampled": SampledProvenanceSpan}
    return [
        kinds[run["kind"]](sequence_id=run["sequence_id"], offset=run["offset"], length=run["length"]) for run in runs
    ]
