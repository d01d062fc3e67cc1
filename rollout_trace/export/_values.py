"""Numbers that files can hold: JSON has no NaN and no infinity."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollout_trace.report import ExportReport

Tell = Callable[[str, Any], None]


def finite(value: Any, tell: Tell, path: str = "$") -> Any:
    """The value with None in the place of each number that is not finite, whose path and value are told.

    Where there is none, it is the value itself.
    """
    if _is_finite(value):
        return value
    if isinstance(value, Mapping):
        return {key: finite(item, tell, f"{path}.{key}") for key, item in value.items()}
    items = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(items, (list, tuple)):
        return [finite(item, tell, f"{path}[{at}]") for at, item in enumerate(items)]
    tell(path, items)
    return None


def counted(value: Any, report: ExportReport, what: str, where: str, *, metadata: bool = False) -> Any:
    """``finite``, that counts what it replaces in a report; ``metadata`` as for ``ExportReport.drop``."""

    def tell(path: str, found: Any) -> None:
        place = f"{where}, {path}: {found!r}"
        report.drop(f"{what} that are not finite numbers", where=place, metadata=metadata)

    return finite(value, tell)


def copied(value: Any) -> Any:
    """A value whose dicts and lists are its own: what is changed in it changes nothing that was recorded."""
    if isinstance(value, dict):
        return {name: copied(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(copied, value)) if type(value) in (list, tuple) else list(map(copied, value))
    return value


def number(value: Any) -> float | None:
    """A reward or the like, of whatever kind of number it is; None stays None."""
    return None if value is None else float(value)


def _is_finite(value: Any) -> bool:
    # The most frequent first: every value of every row comes through here, and `Mapping` is slow to tell.
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
        # Finite only if every item is, and as fast as the list is long.
        if math.isfinite(sum(value)):
            return True
    except (TypeError, ValueError, OverflowError):
        pass
    return all(map(_is_finite, value))
