"""Which call on the wire a framework's model call is: by the context it began in, else by the provider's response id.

A wire call without a frame stays as it is; a frame without a wire call becomes steps of what the framework said.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rollout_trace import guard
from rollout_trace.frames import ModelFrame

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollout_trace.call import Call
    from rollout_trace.frames import Frame
    from rollout_trace.model import Step


def joined(frames: Sequence[Frame], held: Sequence[tuple[Call, list[Step]]]) -> list[Step]:
    """All steps in the order their calls began, with what the framework knows on them."""
    by_call = {id(call): steps for call, steps in held}
    by_response: dict[str, list[list[Step]]] = {}
    for _, steps in held:
        for response_id in {step.response_id for step in steps if step.response_id is not None}:
            by_response.setdefault(response_id, []).append(steps)
    entries = [(call.began, steps) for call, steps in held]

    def join(frame: ModelFrame) -> None:
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

    guard.each("frame", *(partial(join, frame) for frame in frames if isinstance(frame, ModelFrame)))
    entries.sort(key=lambda entry: entry[0])
    return [step for _, steps in entries for step in steps]
