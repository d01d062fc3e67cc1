"""Conversions of what the requests of a trajectory repeat: each object once, and each loss counted once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from typing import Any

import orjson

from rollout_trace.chat.messages import tool_of, tools_of
from rollout_trace.data.model import Step
from rollout_trace.file.plain import dumps
from rollout_trace.report import ExportReport


class Once:
    """Converts objects, and knows what it made of them. Equal messages of one trajectory mostly are one object."""

    def __init__(self, report: ExportReport, where: str) -> None:
        self._report = report
        self._where = where
        self._made: dict[tuple[Any, ...], tuple[tuple[Any, ...], Any]] = {}
        self._told: set[bytes] = set()

    def convert(self, kind: Any, given: tuple[Any, ...], read: Callable[[ExportReport], Any]) -> Any:
        """What ``read`` makes of these objects, called once for each kind of conversion.

        What it drops is counted unless equal objects have lost it before.
        """
        key = (kind, *map(id, given))
        known = self._made.get(key)
        if known is None:
            lost = ExportReport()
            # The objects are kept beside what was made of them: others must not get their ids.
            known = self._made[key] = given, read(lost)
            if lost.dropped:
                self.tell((kind, *given), lost)
        return known[1]

    def tell(self, what: Any, lost: ExportReport) -> None:
        """Counts what was lost of something, unless an equal thing has lost it before."""
        digest = blake2b(dumps(what, orjson.OPT_SORT_KEYS), digest_size=16).digest()
        if digest not in self._told:
            self._told.add(digest)
            self._report.take(lost, where=self._where)

    def tools(self, step: Step) -> list[dict[str, Any]]:
        """The tools of a step's request in chat's shape; none where it has none."""
        if step.tools is None:
            return tools_of(step) or []
        made = (self.convert("tool", (tool,), partial(tool_of, tool)) for tool in step.tools)
        return [tool for tool in made if tool is not None]
