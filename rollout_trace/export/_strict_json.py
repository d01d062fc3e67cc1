"""Values as JSON for strict readers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import orjson

from rollout_trace.file.plain import dumps

if TYPE_CHECKING:
    from rollout_trace.report import ExportReport

_CHECKED = ("int32", "int8", "bool", "float32")
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
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return _text(value, report, where)
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        report.drop("numbers that are not finite, replaced by null", where=where)
        return None
    if isinstance(value, AsIs):
        return value.value
    if isinstance(value, dict):
        return {
            _text(str(name), report, where): strict_json(item, report, where, arrays=arrays)
            for name, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [strict_json(item, report, where, arrays=arrays) for item in value]
    if getattr(value, "dtype", None) in _CHECKED:
        # As a double a float32 keeps its value when it is written as text.
        exact = value.astype("float64") if value.dtype == "float32" else value
        return exact if arrays else exact.tolist()
    return strict_json(orjson.loads(dumps(value)), report, where)


def _text(text: str, report: ExportReport, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        report.drop("half characters (lone surrogates), replaced by U+FFFD", where=where)
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
