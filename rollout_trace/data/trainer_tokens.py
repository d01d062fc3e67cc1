"""A trainer's numbers for the tokens a step sampled: its logprobs, entropy, reference logprobs, loss weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any

from rollout_trace._field_docs import document_fields
from rollout_trace.data.extras import Arrays
from rollout_trace.data.tokens import readonly
from rollout_trace.data.user_values import brief

if TYPE_CHECKING:
    from rollout_trace.data.tokens import FloatArray

_GREATEST = 1e-3
"""The greatest logprob that is accepted: sums of rounded probabilities come out a little over 1."""


@document_fields
@dataclass(frozen=True, slots=True, eq=False)
class TrainerTokens(Arrays):
    """A trainer's numbers, one for each completion token; NaN for tokens it left out (a truncated row)."""

    trainer_logprobs: FloatArray | None = None
    """float32 [completion length], natural logarithm: the trainer's own logprob of each sampled token."""
    entropy: FloatArray | None = None
    """float32 [completion length], nats: entropy of the trainer's distribution at each sampled token."""
    reference_logprobs: FloatArray | None = None
    """float32 [completion length], natural logarithm: the reference model's logprob of each sampled token."""
    loss_weights: FloatArray | None = None
    """float32 [completion length]: weight of each token in the loss, after masks and importance ratios."""


TRAINER_VALUES = tuple(one.name for one in fields(TrainerTokens))


def token_numbers(value: Any, name: str, *, are_logprobs: bool = False) -> FloatArray:
    """One number a token as a read-only float32 array [tokens], from a list, an array or a tensor of any float type.

    Args:
        name: of the value, for messages.
        are_logprobs: none is above 0.

    Raises:
        TypeError: it is no list of numbers.
        ValueError: it is not one-dimensional, or a number is not finite, or a logprob is above 0.
    """
    import numpy as np

    given = value if isinstance(value, np.ndarray) else value.tolist() if hasattr(value, "tolist") else value
    kind = type(value).__name__
    if isinstance(given, (str, bytes, bytearray, Mapping)) or not hasattr(given, "__len__"):
        raise TypeError(f"{name} is {brief(value)} ({kind}); give a list or an array with one number for each token.")
    try:
        found = np.asarray(given)
    except ValueError:  # Lists of different lengths.
        found = np.empty((0, 0), object)
    if found.ndim != 1:
        raise ValueError(f"{name} has the shape {list(found.shape)}; give one dimension, one number for each token.")
    if found.size and found.dtype.kind not in "fiu":
        raise TypeError(f"{name} is {brief(value)} ({kind} of {found.dtype}); give one number for each token.")
    with np.errstate(over="ignore"):
        numbers = found.astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(numbers))
    if len(bad):
        at = int(bad[0])
        raise ValueError(f"{name}[{at}] is {found[at]}; give a finite number that float32 holds.")
    if are_logprobs and numbers.size and numbers.max() > _GREATEST:
        at = int(numbers.argmax())
        raise ValueError(f"{name}[{at}] is {found[at]}; give natural logarithms of probabilities, 0 or less.")
    array: FloatArray = readonly(numbers)
    return array


TRAINER_CHECKS: dict[str, Callable[[Any, str], FloatArray]] = {
    name: partial(token_numbers, are_logprobs=name.endswith("logprobs")) for name in TRAINER_VALUES
}
"""What checks each of them, by its name: of a value and its place."""


def padded(values: FloatArray, length: int) -> FloatArray:
    """float32 [length]: the numbers of the first tokens, then NaN."""
    import numpy as np

    if len(values) == length:
        return values
    whole = np.full(length, np.nan, np.float32)
    whole[: len(values)] = values
    array: FloatArray = readonly(whole)
    return array
