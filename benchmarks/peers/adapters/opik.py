"""Opik's wrapper; what its client would send ends in this process."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import opik
from opik.api_objects import opik_client
from opik.hooks import httpx_client_hook
from opik.integrations.openai import track_openai

from benchmarks.peers.adapters.base import Adapter, Record


class Peer(Adapter):
    """A wrapped client, with the batches of its background threads kept as they would be sent."""

    imports = "import opik; from opik.integrations.openai import track_openai"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        os.environ |= {
            "OPIK_URL_OVERRIDE": "http://127.0.0.1:9/api",
            "OPIK_SENTRY_ENABLE": "false",
            "OPIK_ANALYTICS_ENABLED": "false",
            "OPIK_TRACK_DISABLE": "false",
            "OPIK_CONFIG_PATH": str(folder / "opik.config"),
        }
        self._sent: list[tuple[str, str, bytes]] = []
        transport = httpx.MockTransport(self._answer)
        httpx_client_hook.add_httpx_client_hook(
            httpx_client_hook.HttpxClientHook(None, {"transport": transport, "proxy": None})
        )
        self._opik = opik.Opik(project_name="bench")
        opik_client.set_global_client(self._opik)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        body = request.read()
        self._sent.append((request.url.path, request.headers.get("content-encoding", ""), body))
        return httpx.Response(200, json={})

    def wrap(self, client: Any) -> Any:
        return track_openai(client, project_name="bench")

    @contextmanager
    def trace(self, name: str) -> Iterator[None]:
        with opik.start_as_current_trace(name, project_name="bench"):
            yield

    def flush(self) -> None:
        self._opik.flush(timeout=120)

    def records(self) -> list[Record]:
        names: dict[str, str] = {}
        parts: dict[str, list[dict[str, Any]]] = {}
        for path, encoding, body in self._sent:
            for item in _items(path, encoding, body):
                key = str(item.get("id") or path.rpartition("/")[2])
                if "/spans" in path:
                    parts.setdefault(key, []).append(item)
                elif item.get("name"):
                    names[key] = item["name"]
        spans = [_merged(items) for items in parts.values()]
        calls = [span for span in spans if span.get("type") == "llm" or "chat_completion" in str(span.get("name"))]
        return [Record(names.get(str(span.get("trace_id"))), span, bool(span.get("error_info"))) for span in calls]

    def clear(self) -> None:
        self._sent.clear()


def _merged(items: list[dict[str, Any]]) -> dict[str, Any]:
    """The beginning and the end of a span, which are sent by several threads in any order."""
    ordered = sorted(items, key=lambda item: item.get("end_time") is not None)
    return {key: value for item in ordered for key, value in item.items() if value is not None}


def _items(path: str, encoding: str, body: bytes) -> list[dict[str, Any]]:
    if "/spans" not in path and "/traces" not in path:
        return []
    value = json.loads(gzip.decompress(body) if "gzip" in encoding else body)
    found: list[dict[str, Any]] = value.get("spans") or value.get("traces") or [value]
    return found
