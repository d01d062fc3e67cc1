"""Counts of what an import could not find in its source, and of what it left out."""

from __future__ import annotations

from rollout_trace.report import format_counts


class ImportReport:
    """Counts of one import. Pass one to an importer as ``report=``, or read ``.report`` of what it returns."""

    def __init__(self) -> None:
        self.missing: dict[str, int] = {}
        """What the source does not have, and steps or trajectories therefore lack: description to count."""
        self.dropped: dict[str, int] = {}
        """What the source has and the trajectories lack: description to count."""
        self.noted: dict[str, int] = {}
        """What is in the trajectories but was changed, joined or made on the way: description to count."""
        self.trajectories = 0
        """Trajectories given so far."""
        self.steps = 0
        """Their steps."""

    def miss(self, what: str, count: int = 1) -> None:
        """Counts something that the source does not have. Zero is ignored."""
        _add(self.missing, what, count)

    def miss_tokens(self, ids: object = None, logprobs: object = None) -> None:
        """Counts what of a step's tokens the source does not have: what is None."""
        self.miss("token ids", ids is None)
        self.miss("logprobs", logprobs is None)

    def drop(self, what: str, count: int = 1) -> None:
        """Counts something that trajectories have no place for. Zero is ignored."""
        _add(self.dropped, what, count)

    def note(self, what: str, count: int = 1) -> None:
        """Counts something that was changed, joined or made on the way. Zero is ignored."""
        _add(self.noted, what, count)

    def __str__(self) -> str:
        parts = [("missing in the source", self.missing), ("left out", self.dropped), ("note", self.noted)]
        found = [f"{name}: {format_counts(counts)}" for name, counts in parts if counts]
        return "; ".join(found) or "nothing is missing, and nothing was left out"


def _add(counts: dict[str, int], what: str, count: int) -> None:
    if count:
        counts[what] = counts.get(what, 0) + count
