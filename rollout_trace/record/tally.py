"""What this process has written: trajectories, steps, tokens, and why some have no token ids."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from rollout_trace import guard
from rollout_trace._threads import renew_after_fork
from rollout_trace.data.model import shared
from rollout_trace.record import sink

if TYPE_CHECKING:
    from rollout_trace.data.model import Step
    from rollout_trace.data.trajectory import Trajectory

_ROOTS = 2
"""Most roots whose ids are kept: it matters only whether there is exactly one."""
_COUNTED = ("orphans", "not_model_calls", "trajectories_lost", "recorder_errors")
"""Counters of ``rt.stats()`` that are added."""


class Tally:
    """Counts of one process, or the sum of several."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begins anew."""
        self.files: Counter[str] = Counter()
        """Trajectories by the file that they were written to."""
        self.roots: list[tuple[str, str]] = []
        """Ids and files of the first trajectories without a parent."""
        self.counts: Counter[str] = Counter()
        """``steps``, ``with_ids``, ``input``, ``output`` (tokens), ``unknown`` (steps without a count of them), and
        counters of ``rt.stats()``."""
        self.without_ids: Counter[str] = Counter()
        """Steps without token ids, by the reason."""

    def add(self, trajectory: Trajectory, target: str) -> None:
        """Counts a trajectory that was written to a target. Decodes nothing."""
        self.files[target] += 1
        if trajectory.parent_id is None and len(self.roots) < _ROOTS:
            self.roots.append((trajectory.id, target))
        for step in trajectory.steps:
            self._add_step(step)

    def _add_step(self, step: Step) -> None:
        self.counts["steps"] += 1
        if shared(step, "completion_token_ids") is not None:
            self.counts["with_ids"] += 1
        else:
            self.without_ids[reason_without_ids(step)] += 1
        for name in ("input", "output"):
            tokens = _tokens(step, name)
            self.counts[f"{name}_unknown" if tokens is None else name] += 1 if tokens is None else tokens

    def as_json(self) -> dict[str, Any]:
        """The counts, for another process."""
        stats = guard.stats()
        self.counts.update({name: getattr(stats, name) for name in _COUNTED if hasattr(stats, name)})
        return {name: dict(value) if isinstance(value, Counter) else value for name, value in vars(self).items()}

    def merge(self, other: dict[str, Any]) -> None:
        """Adds what ``as_json`` of another process gave."""
        for name in ("files", "counts", "without_ids"):
            getattr(self, name).update(other[name])
        self.roots = [*self.roots, *(tuple(root) for root in other["roots"])][:_ROOTS]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to tell."""
        return not self.files and not any(self.counts.values())


def _tokens(step: Step, name: str) -> int | None:
    usage = None if step.usage is None else getattr(step.usage, name)
    if usage is not None and step.choice == 0:
        return int(usage)
    if usage is not None:
        # Usage is that of the call, all choices together.
        return 0
    ids = step.prompt_token_ids if name == "input" else step.completion_token_ids
    if ids is not None:
        return len(ids) if name == "output" or step.choice == 0 else 0
    # A call that failed, or did not reach the model, used none that anybody counts.
    return 0 if step.status in ("error", "cached") else None


def reason_without_ids(step: Step) -> str:
    """Why a step has no completion ids, in words that are the same for all such steps."""
    if step.token_issue is not None:
        # The rest is particular to one call, such as what a server answered.
        return step.token_issue.message.partition(" (")[0].removesuffix(".")
    if step.status == "ok":
        return "the answer has no completion"
    return {"error": "the call failed", "cached": "the answer came from a cache"}.get(
        step.status, f"the call is {step.status}"
    )


_tally = Tally()
# A forked process has written nothing yet.
renew_after_fork(_tally, Tally.reset)


def start() -> None:
    """Begins to count."""
    if _tally.add not in sink.on_written:
        sink.on_written.append(_tally.add)


def own() -> Tally:
    """What was counted in this process since ``start``."""
    return _tally
