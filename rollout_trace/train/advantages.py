"""The advantage that a user set on a step: its validation, and its array for training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollout_trace.data.tokens import FLOAT32_MAX

if TYPE_CHECKING:
    from rollout_trace.data.model import Step
    from rollout_trace.data.tokens import FloatArray


def advantage_array(step: Step, length: int) -> FloatArray | None:
    """float32 [length], read-only; a single number is repeated for every token. None where the step has no advantage.

    Args:
        step: the step whose ``advantage`` is read.
        length: number of tokens of its completion.

    Raises:
        ValueError: see ``advantage_problem``.
    """
    import numpy as np

    if step.advantage is None:
        return None
    problem = advantage_problem(step, length)
    if problem is not None:
        raise ValueError(f"step {step.id!r}: {problem[0]}")
    return np.broadcast_to(np.asarray(step.advantage).astype(np.float32), (length,))


def advantage_problem(step: Step, length: int | None) -> tuple[str, int | None] | None:
    """A sentence on what is wrong with an advantage, and the index of the token; None where it is sound.

    Sound is a finite number, or one for each token. ``length`` None: the number of tokens is not known, and any fits.
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
    # Not `> FLOAT32_MAX`: every comparison with NaN is False.
    bad = ~(np.abs(each) <= FLOAT32_MAX)
    if not bad.any():
        return None
    at = int(bad.argmax())
    return f"an advantage is {each[at]}; expected a number that float32 holds.", at if values.ndim else None
