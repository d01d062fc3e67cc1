"""Weave's patch of the SDK; what its client would send ends in this process."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ |= {"WANDB_ERROR_REPORTING": "false", "WEAVE_PRINT_CALL_LINK": "false", "WANDB_API_KEY": "0" * 40}

import weave
from weave.integrations import patch_openai
from weave.trace import weave_client
from weave.trace.context import weave_client_context

from benchmarks.peers.adapters.base import Adapter, Record


class _Server:
    """Stands where Weave's HTTP client does: keeps what it is handed."""

    def __init__(self) -> None:
        self.starts: dict[str, Any] = {}
        self.ends: dict[str, Any] = {}
        self.objects: dict[str, Any] = {}
        self._guard = threading.Lock()

    def call_start(self, req: Any) -> Any:
        start = req["start"] if isinstance(req, dict) else req.start
        with self._guard:
            self.starts[_get(start, "id")] = start
        return SimpleNamespace(id=_get(start, "id"), trace_id=_get(start, "trace_id"))

    def call_end(self, req: Any) -> Any:
        end = req["end"] if isinstance(req, dict) else req.end
        with self._guard:
            self.ends[_get(end, "id")] = end
        return SimpleNamespace()

    def _create(self, req: Any) -> Any:
        digest = hashlib.sha256(repr(req).encode()).hexdigest()[:40]
        return SimpleNamespace(digest=digest, object_id=digest, row_digests=[])

    obj_create = file_create = table_create = table_create_from_digests = _create

    def ensure_project_exists(self, entity: str, project: str) -> Any:
        return SimpleNamespace(project_name=project)

    def get_call_processor(self) -> None:
        """It has none: calls arrive at once."""

    get_feedback_processor = get_call_processor


def _get(item: Any, name: str) -> Any:
    return item.get(name) if isinstance(item, dict) else getattr(item, name, None)


class Peer(Adapter):
    """The openai SDK of this process, patched. What its HTTP client does is not in the figures."""

    imports = "import weave; from weave.integrations import patch_openai; patch_openai"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._server = _Server()
        self._client = weave_client.WeaveClient("bench", "bench", self._server, ensure_project_exists=False)
        weave_client_context.set_weave_client_global(self._client)
        patch_openai()

        self._hold = weave.op(_hold, name="trace")

    @contextmanager
    def trace(self, name: str) -> Iterator[None]:
        call = self._client.create_call(self._hold, {"name": name}, display_name=name)
        try:
            yield
        finally:
            self._client.finish_call(call, None)

    def flush(self) -> None:
        self._client.flush()

    def records(self) -> list[Record]:
        starts, ends = self._server.starts, self._server.ends
        held = [start for start in starts.values() if not _is_call(start)]
        names = {_get(start, "trace_id"): _get(start, "display_name") for start in held}
        return [
            Record(names.get(_get(start, "trace_id")), [start, ends.get(key)], _failed(ends.get(key)))
            for key, start in starts.items()
            if _is_call(start)
        ]

    def clear(self) -> None:
        self._server.starts.clear()
        self._server.ends.clear()


def _hold() -> None:
    """What the calls of one agent are in."""


def _is_call(start: Any) -> bool:
    return "openai" in str(_get(start, "op_name"))


def _failed(end: Any) -> bool:
    """A call without an end is unfinished."""
    return end is None or bool(_get(end, "exception"))
