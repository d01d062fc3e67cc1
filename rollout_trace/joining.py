"""Which call on the wire a framework's model call is: by the context it began in, else by the provider's response id.

A wire call without a frame stays as it is; a frame without a wire call becomes steps of what the framework said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollout_trace.frames import ModelFrame

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollout_trace.call import Call
    from rollout_trace.frames import Frame
    from rollout_trace.model import Step


def joined(frames: Sequence[Frame], held: Sequence[tuple[Call, list[Step]]]) -> list[Step]:
    """All steps in the order their calls began, with what the framework knows on them."""
    by_call = {id(call): steps for call, steps in held}
    by_response = {step.response_id: steps for _, steps in held for step in steps if step.response_id is not None}
    entries = [(call.began, steps) for call, steps in held]
    for frame in frames:
        if not isinstance(frame, ModelFrame):
            continue
        # The response id says it exactly; calls of one batch may have begun in another order than they were announced.
        found = by_response.get(frame.response_id) if frame.response_id is not None else None
        seen = [found] if found is not None else [by_call[id(call)] for call in frame.calls if id(call) in by_call]
        for steps in seen:
            frame.mark(steps)
        if not seen:
            entries.append((frame.began, frame.steps()))
    entries.sort(key=lambda entry: entry[0])
    return [step for _, steps in entries for step in steps]
