"""Finds how a trajectory's requests continue each other, and which of their messages are new.

Compared are the messages, not the token ids: what ``trajectory.sequences()`` finds is shown beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rollout_trace.data.conversations import Conversations, is_from_assistant
from rollout_trace.data.model import Step
from rollout_trace.wire.chat_answers import compare_answer
from rollout_trace.wire.chat_messages import previous_response_of


class Link(NamedTuple):
    """Where a step stands among the earlier ones."""

    thread: int
    """Which conversation it is in, from 0."""
    continues: int | None
    """Index of the step whose messages and answer its request begins with."""
    repeated: int
    """Number of messages at the beginning of its request that earlier steps have shown."""
    repeated_text: int = 0
    """Of a request that is one text: number of characters at its beginning."""
    shown_by: int | None = None
    """Index of the step that has shown what is repeated, where it is not one that this step continues."""


class Threads:
    """The links of steps, which are added in their order."""

    def __init__(self) -> None:
        self.links: list[Link] = []
        self._conversations = Conversations()
        self._ends: dict[int, tuple[int, int]] = {}
        """The last steps of each thread: the one that went furthest, and the latest, which may have tried an earlier
        request again."""
        self._by_response: dict[str, int] = {}

    def add(self, step: Step) -> Link:
        """The link of the next step."""
        previous = previous_response_of(step)
        before = self._by_response.get(previous) if isinstance(previous, str) else None
        at = self._conversations.add(step, before)
        link = self._link(at) if before is None else self._after(before, 0)
        self.links.append(link)
        is_repeated = link.shown_by is not None and link.thread in self._ends
        self._ends[link.thread] = (self._ends[link.thread][0] if is_repeated else at, at)
        if step.response_id is not None:
            self._by_response.setdefault(step.response_id, at)
        return link

    def _link(self, at: int) -> Link:
        index = self._conversations
        request = index.request(at)
        if request.parent is None:
            # Its messages are not known: neither whether it continues another, nor that it begins anew.
            return Link(0, None, 0)
        twin = index.twin(at)
        if twin is not None:
            repeats, text = self.links[twin], len(request.text or "")
            return Link(repeats.thread, repeats.continues, 0 if text else request.depth, text, twin)
        before = next(index.continued(at), None)
        if before is not None:
            return self._continued(at, before)
        # A reset, a summary, a sub-agent: what it has in common with others need not be shown again.
        common = index.repeated(at)
        if request.text is not None or not 0 < common.depth < request.depth:
            return Link(len(self._ends), None, 0)
        ends = sorted((latest for _, latest in self._ends.values()), reverse=True)
        shown_by = next((end for end in ends if common in index.request(end).path()), common.place)
        return Link(len(self._ends), None, common.depth, shown_by=shown_by)

    def _continued(self, at: int, before: int) -> Link:
        index = self._conversations
        step, previous, request = index.steps[at], index.steps[before], index.request(at)
        if request.text is not None:
            return self._after(before, 0, len(index.whole_text(before)))
        messages = step.messages or ()
        repeated = index.request(before).depth
        if compare_answer(step, previous) != "changed":
            while repeated < request.depth and is_from_assistant(messages[repeated]):
                repeated += 1
        return self._after(before, repeated)

    def _after(self, before: int, repeated: int, text: int = 0) -> Link:
        thread, request = self.links[before].thread, self._conversations.request
        # Also where the last one had the same request as this one: a thread goes on from either of two choices.
        is_end = any(request(end) is request(before) for end in self._ends[thread])
        return Link(thread if is_end else len(self._ends), before, repeated, text)


def threads_of(steps: Sequence[Step]) -> list[Link]:
    """The link of each step of a trajectory."""
    threads = Threads()
    return [threads.add(step) for step in steps]


def children_after(
    steps: Sequence[Step], children: Sequence[tuple[str, str | None, float | None]]
) -> dict[int, list[str]]:
    """Trajectories that were opened inside, by the index of the step after which they began; -1: before the first.

    ``children``: of each its id, its ``parent_step_id``, and when it started (Unix time).
    """
    index = {step.id: at for at, step in enumerate(steps)}
    found: dict[int, list[str]] = {}
    for identity, parent_step, started in children:
        at = index.get(parent_step) if parent_step is not None else None
        found.setdefault(_before(steps, started) if at is None else at, []).append(identity)
    return found


def _before(steps: Sequence[Step], started: float | None) -> int:
    times: Iterator[int] = (
        at
        for at, step in enumerate(steps)
        if started is not None and step.started_at is not None and step.started_at.timestamp() <= started
    )
    return max(times, default=-1)
