"""Values that files can hold: JSON has no NaN, no infinity, and no half characters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import orjson

from rollout_trace.data.tokens import FLOAT32_MAX
from rollout_trace.file.plain import dumps

if TYPE_CHECKING:
    from rollout_trace.report import ExportReport

OnReplaced = Callable[[str, Any], None]
_SOUND = ("<i4", "|i1", "|b1", "<f4", ">i4", ">f4")
"""Types of arrays of ids, masks and logprobs: exporters pass sound ones alone, so their items need no check."""


class AsIs:
    """A value that ``strict_json`` leaves as it is, although JSON has no form for it: an array's bytes."""

    def __init__(self, value: Any) -> None:
        self.value = value


def strict_json(value: Any, report: ExportReport, where: str, *, arrays: bool = False) -> Any:
    """A copy of a value as plain JSON that pydantic accepts as well.

    Lone surrogates become U+FFFD and numbers that are not finite become null; both are counted. Types without a form in
    JSON are written as in a file of trajectories. ``arrays``: ids, masks and logprobs stay arrays, for a writer.
    """
    return _strict(value, report, where, arrays)


def _strict(value: Any, report: ExportReport, where: str, arrays: bool) -> Any:
    # Each value of each row comes here: the most frequent types first, and no call for a text of ASCII.
    if isinstance(value, str):
        return value if value.isascii() else _text(value, report, where)
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, dict):
        return {
            name if type(name) is str and name.isascii() else _text(str(name), report, where): (
                _strict(item, report, where, arrays)
            )
            for name, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_strict(item, report, where, arrays) for item in value]
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        report.drop("numbers that are not finite, replaced by null", where=where)
        return None
    if isinstance(value, AsIs):
        return value.value
    kind = getattr(getattr(value, "dtype", None), "str", None)
    if kind in _SOUND:
        # As a double a float32 keeps its value when it is written as text.
        exact = value.astype("float64") if kind[1] == "f" else value
        return exact if arrays else exact.tolist()
    return _strict(orjson.loads(dumps(value)), report, where, arrays)


def _text(text: str, report: ExportReport, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        report.drop("half characters (lone surrogates), replaced by U+FFFD", where=where)
        return whole_text(text)
    return text


def whole_text(text: str) -> str:
    """The text with U+FFFD for half characters."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


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
    beyond = reward is not None and abs(reward) > FLOAT32_MAX
    report.drop("rewards beyond the range of float32", beyond, where=where)
    return None if beyond else reward


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
