"""A cache for what the requests of a trajectory repeat: each object is converted once, each loss counted once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from typing import Any

import orjson

from rollout_trace.data.model import Step
from rollout_trace.file.plain import dumps
from rollout_trace.report import ExportReport
from rollout_trace.wire.chat_messages import tool_of, tools_of


class ConversionCache:
    """Converts each object once, by identity: equal messages of one trajectory mostly are one object."""

    def __init__(self, report: ExportReport, where: str) -> None:
        self._report = report
        self._where = where
        self._converted: dict[tuple[Any, ...], tuple[tuple[Any, ...], Any]] = {}
        self._counted: set[bytes] = set()

    def convert(self, kind: Any, objects: tuple[Any, ...], read: Callable[[ExportReport], Any]) -> Any:
        """The result of ``read``, called once for these objects and this kind of conversion.

        What it drops is counted, unless equal objects were counted before.
        """
        key = (kind, *map(id, objects))
        entry = self._converted.get(key)
        if entry is None:
            lost = ExportReport()
            # The objects are stored with the result: a freed object's id could be given to another one.
            entry = self._converted[key] = objects, read(lost)
            if lost.dropped:
                self.count_lost((kind, *objects), lost)
        return entry[1]

    def count_lost(self, what: Any, lost: ExportReport) -> None:
        """Counts what was lost in converting ``what``, unless an equal value was counted before."""
        digest = blake2b(dumps(what, orjson.OPT_SORT_KEYS), digest_size=16).digest()
        if digest not in self._counted:
            self._counted.add(digest)
            self._report.take(lost, where=self._where)

    def tools(self, step: Step) -> list[dict[str, Any]]:
        """The tools of a step's request in chat's shape; empty where it has none."""
        if step.tools is None:
            return tools_of(step) or []
        converted = (self.convert("tool", (tool,), partial(tool_of, tool)) for tool in step.tools)
        return [tool for tool in converted if tool is not None]
