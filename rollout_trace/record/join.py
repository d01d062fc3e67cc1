"""Which call on the wire a framework's model call is: by the context it began in, else by the provider's response id.

A wire call without a frame stays as it is; a frame without a wire call becomes steps of what the framework said.
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
    """A frame, as the log of a trajectory knows it."""

    def abandon(self) -> None:
        """The trajectory closes, and nobody has ended the frame."""

    def forget(self) -> None:
        """Lets go of what it holds."""


class ModelCallFrame(OpenFrame, Protocol):
    """The frame of a model call, as it is joined with calls on the wire."""

    calls: list[Call]
    """Those that began in its context."""
    response_id: str | None
    """The provider's id of the answer, where the framework has it."""
    began: float
    """When, by ``time.perf_counter``."""

    @property
    def step_id(self) -> str:
        """Of its first step."""

    def mark_all(self, seen: Sequence[list[Step]]) -> None:
        """Puts what the framework knows on the steps of its calls."""

    def steps(self) -> list[Step]:
        """The steps of a call whose bytes were not seen."""


def joined(frames: Sequence[ModelCallFrame], held: Sequence[tuple[Call, list[Step]]]) -> list[Step]:
    """All steps in the order their calls began, with what the framework knows on them."""
    by_call = {id(call): steps for call, steps in held}
    by_response: dict[str, list[list[Step]]] = {}
    for _, steps in held:
        for response_id in {step.response_id for step in steps if step.response_id is not None}:
            by_response.setdefault(response_id, []).append(steps)
    entries = [(call.began, steps) for call, steps in held]

    def join(frame: ModelCallFrame) -> None:
        seen = [by_call[id(call)] for call in frame.calls if id(call) in by_call]
        answers = [] if frame.response_id is None else by_response.get(frame.response_id, [])
        if len(answers) == 1 and answers[0] not in seen:
            # It says exactly which: calls of one batch may have begun in another order than they were announced. An id
            # that several answers have, as some servers give it, says nothing.
            seen = answers
        if seen:
            frame.mark_all(seen)
        else:
            entries.append((frame.began, frame.steps()))

    guard.run_all("frame", *(partial(join, frame) for frame in frames))
    entries.sort(key=lambda entry: entry[0])
    return [step for _, steps in entries for step in steps]
