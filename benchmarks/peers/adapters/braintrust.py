"""Braintrust's wrapper, with the logger in memory that its own tests use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import braintrust
from braintrust import logger
from braintrust.logger import ObjectMetadata, OrgProjectMetadata
from braintrust.util import LazyValue

from benchmarks.peers.adapters.base import Adapter, Record


class Peer(Adapter):
    """A wrapped client; the rows of each span are merged, as they are before they are sent."""

    imports = "import braintrust; braintrust.wrap_openai, braintrust.init_logger"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        os.environ |= {"BRAINTRUST_API_KEY": "bench", "BRAINTRUST_APP_URL": "http://127.0.0.1:9"}
        self._memory = logger._MemoryBackgroundLogger()
        logger._state._global_bg_logger = LazyValue(lambda: self._memory, use_mutex=False)
        project = ObjectMetadata(id="bench", name="bench", full_info={})
        metadata = OrgProjectMetadata(org_id="bench", project=project)
        braintrust.init_logger(project="bench", project_id="bench")._lazy_metadata = LazyValue(
            lambda: metadata, use_mutex=False
        )
        self._rows: list[dict[str, Any]] = []

    def wrap(self, client: Any) -> Any:
        return braintrust.wrap_openai(client)

    @contextmanager
    def trace(self, name: str) -> Iterator[None]:
        with braintrust.start_span(name=name):
            yield

    def flush(self) -> None:
        self._rows += self._memory.pop()

    def count(self) -> int:
        return sum(map(_is_call, self._rows))

    def records(self) -> list[Record]:
        names = {row["root_span_id"]: row["span_attributes"]["name"] for row in self._rows if not _is_call(row)}
        calls = [row for row in self._rows if _is_call(row)]
        return [Record(names.get(row["root_span_id"]), row, failed=bool(row.get("error"))) for row in calls]

    def clear(self) -> None:
        self._rows.clear()


def _is_call(row: dict[str, Any]) -> bool:
    return bool(row.get("span_attributes", {}).get("type") == "llm")
