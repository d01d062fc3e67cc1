"""Matching of framework model calls (frames) with recorded HTTP calls: by context, else by the provider's response id.

A call without a frame keeps its steps as they are. A frame without a call is represented by steps made from the
framework's data.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from rollout_trace import guard

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollout_trace.data.model import Step
    from rollout_trace.record.call import Call


class OpenFrame(Protocol):
    """The methods of a frame that closing its trajectory calls."""

    def abandon(self) -> None:
        """Ends the frame if no hook has ended it."""

    def forget(self) -> None:
        """Drops references to calls, answers and steps."""


class ModelCallFrame(OpenFrame, Protocol):
    """The part of a model call's frame that matching it with recorded calls needs."""

    calls: list[Call]
    """Recorded calls that began in the frame's context."""
    response_id: str | None
    """The provider's id of the answer, if the framework reported it."""
    began: float
    """Start, as ``time.perf_counter`` seconds."""

    @property
    def step_id(self) -> str:
        """Id of its first step."""

    def mark_all(self, seen: Sequence[list[Step]]) -> None:
        """Adds the framework's metadata to the steps of each matched call."""

    def steps(self) -> list[Step]:
        """Steps made from the framework's data, for a frame without a recorded call."""


def join_frames_with_calls(frames: Sequence[ModelCallFrame], calls: Sequence[tuple[Call, list[Step]]]) -> list[Step]:
    """Steps of all calls in start order, annotated with framework metadata.

    Frames without a recorded call are represented by their own steps, at the time the frame began.
    """
    by_call = {id(call): steps for call, steps in calls}
    by_response: dict[str, list[list[Step]]] = {}
    for _, steps in calls:
        # A set: the choices of one call (n=2) share its response id.
        for response_id in {step.response_id for step in steps if step.response_id is not None}:
            by_response.setdefault(response_id, []).append(steps)
    entries = [(call.began, steps) for call, steps in calls]

    def join(frame: ModelCallFrame) -> None:
        matched = [by_call[id(call)] for call in frame.calls if id(call) in by_call]
        same_id = [] if frame.response_id is None else by_response.get(frame.response_id, [])
        # An id beats the context: the calls of a batch may begin in another order than their frames. It must be unique,
        # though: some servers send the same id with every answer.
        if len(same_id) == 1 and same_id[0] not in matched:
            matched = same_id
        if matched:
            frame.mark_all(matched)
        else:
            entries.append((frame.began, frame.steps()))

    guard.run_all("frame", *(partial(join, frame) for frame in frames))
    entries.sort(key=lambda entry: entry[0])
    return [step for _, steps in entries for step in steps]
