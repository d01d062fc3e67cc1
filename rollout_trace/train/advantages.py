"""The advantage that a user set on a step: what is wrong with it, and its form for training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollout_trace.data.tokens import FLOAT32_MAX

if TYPE_CHECKING:
    from rollout_trace.data.model import Step
    from rollout_trace.data.tokens import FloatArray


def advantage_of(step: Step, length: int) -> FloatArray | None:
    """float32 [length], read-only: one number is that of every token. None where the step has none.

    Args:
        step: whose ``advantage``.
        length: tokens of its completion.

    Raises:
        ValueError: see ``fault_of``.
    """
    import numpy as np

    if step.advantage is None:
        return None
    fault = fault_of(step, length)
    if fault is not None:
        raise ValueError(f"step {step.id!r}: {fault[0]}")
    return np.broadcast_to(np.asarray(step.advantage).astype(np.float32), (length,))


def fault_of(step: Step, length: int | None) -> tuple[str, int | None] | None:
    """Why an advantage is neither a number nor one for each token, and at which token; None where it is sound.

    ``length`` None: how many tokens there are is not known.
    """
    import numpy as np

    if step.advantage is None:
        return None
    try:
        values = np.asarray(step.advantage)
    except ValueError:  # Lists of different lengths.
        values = np.empty((0, 0), object)
    if values.dtype.kind not in "iuf" or values.ndim > 1:
        text = repr(step.advantage)
        text = text if len(text) <= 80 else text[:77] + "..."
        return f"advantage is {text}; expected a number, or one for each completion id.", None
    if values.ndim and length is not None and len(values) != length:
        return f"{length} completion ids but {len(values)} advantages.", min(length, len(values))
    each = np.atleast_1d(values)
    bad = ~(np.abs(each) <= FLOAT32_MAX)
    if not bad.any():
        return None
    at = int(bad.argmax())
    return f"an advantage is {each[at]}; expected a number that float32 holds.", at if values.ndim else None
