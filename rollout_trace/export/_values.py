"""Values that files can hold: JSON has no NaN and no infinity."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollout_trace.report import ExportReport

OnReplaced = Callable[[str, Any], None]


def finite(value: Any, on_replaced: OnReplaced, path: str = "$") -> Any:
    """The value with None for each number that is not finite; ``on_replaced`` is called with its path and the number.

    A value without such numbers is returned itself, not copied.
    """
    if _is_finite(value):
        return value
    if isinstance(value, Mapping):
        return {key: finite(item, on_replaced, f"{path}.{key}") for key, item in value.items()}
    items = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(items, (list, tuple)):
        return [finite(item, on_replaced, f"{path}[{at}]") for at, item in enumerate(items)]
    on_replaced(path, items)
    return None


def finite_counted(value: Any, report: ExportReport, what: str, where: str, *, metadata: bool = False) -> Any:
    """``finite``, with the replaced numbers counted in a report; ``metadata`` as for ``ExportReport.drop``."""

    def on_replaced(path: str, number: Any) -> None:
        place = f"{where}, {path}: {number!r}"
        report.drop(f"{what} that are not finite numbers", where=place, metadata=metadata)

    return finite(value, on_replaced)


def copied(value: Any) -> Any:
    """A copy of all dicts and lists in a value, so that changing it does not change what was recorded."""
    if isinstance(value, dict):
        return {name: copied(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        # A recorded list is a `FrozenList`, which cannot be changed: its copy is a plain list.
        return type(value)(map(copied, value)) if type(value) in (list, tuple) else list(map(copied, value))
    return value


def number(value: Any) -> float | None:
    """A reward or the like as a float, whatever its type of number; None stays None."""
    return None if value is None else float(value)


def numbers(values: Any) -> Any:
    """Numbers by name as floats; None stays None. Where all are floats it is the mapping itself."""
    if values is None or all(value is None or type(value) is float for value in values.values()):
        return values
    return {name: number(value) for name, value in values.items()}


def within_float32(reward: float | None, report: ExportReport, where: str) -> float | None:
    """A reward for an array of float32; None, and counted, where it would be infinite there."""
    beyond = reward is not None and abs(reward) > _FLOAT32_MAX
    report.drop("rewards beyond the range of float32", beyond, where=where)
    return None if beyond else reward


_FLOAT32_MAX = 3.4028234663852886e38


def _is_finite(value: Any) -> bool:
    # The most frequent types first: every value of every row is checked, and `isinstance(_, Mapping)` is slow.
    if value is None or isinstance(value, (str, int)):
        return True
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, (dict, Mapping)):
        return all(map(_is_finite, value.values()))
    kind = getattr(getattr(value, "dtype", None), "kind", None)
    if kind is not None:
        import numpy as np

        return kind != "f" or bool(np.isfinite(value).all())
    if hasattr(value, "tolist"):  # A tensor, of torch for example.
        return _is_finite(value.tolist())
    if not isinstance(value, (list, tuple)):
        return True
    try:
        # Fast path: a sum is finite only if every item is. A sum that overflows falls through to the slow one.
        if math.isfinite(sum(value)):
            return True
    except (TypeError, ValueError, OverflowError):
        pass
    return all(map(_is_finite, value))
