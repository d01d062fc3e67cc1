"""LangSmith's wrapper; what its client would send ends in this process."""

from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests
import zstandard
from langsmith import Client, run_helpers, wrappers
from requests.adapters import BaseAdapter
from requests_toolbelt.multipart.decoder import MultipartDecoder

from benchmarks.peers.adapters.base import Adapter, Record


class _Sink(BaseAdapter):
    """Keeps the bodies of the requests, and answers that all is well."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[str, str, bytes]] = []
        self._guard = threading.Lock()

    def send(self, request: Any, *args: Any, **kwargs: Any) -> requests.Response:
        body = request.body if request.body is not None else b""
        data = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else body.read()
        with self._guard:
            self.sent.append(
                (request.headers.get("Content-Type", ""), request.headers.get("Content-Encoding", ""), data)
            )
        response = requests.Response()
        response.status_code, response.raw, response.request, response.url = (
            202,
            io.BytesIO(b"{}"),
            request,
            request.url,
        )
        return response

    def close(self) -> None:
        """Nothing is open."""


class Peer(Adapter):
    """A wrapped client, with the batches of its background threads kept as they would be sent."""

    imports = "import langsmith; from langsmith.wrappers import wrap_openai"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        os.environ |= {"LANGSMITH_TRACING": "true", "LANGSMITH_API_KEY": "bench"}
        info = {
            "version": "0.15.0",
            "batch_ingest_config": {
                "use_multipart_endpoint": True,
                "size_limit": 100,
                "size_limit_bytes": 20_971_520,
                "scale_up_nthreads_limit": 16,
                "scale_up_qsize_trigger": 1000,
                "scale_down_nempty_trigger": 4,
            },
            "instance_flags": {"zstd_compression_enabled": True},
        }
        self._client = Client(api_url="http://127.0.0.1:9", info=info)
        self._sink = _Sink()
        for scheme in ("http://", "https://"):
            self._client.session.mount(scheme, self._sink)

    def wrap(self, client: Any) -> Any:
        return wrappers.wrap_openai(client, tracing_extra={"client": self._client})

    @contextmanager
    def trace(self, name: str) -> Iterator[None]:
        with run_helpers.trace(name, client=self._client):
            yield

    def flush(self) -> None:
        self._client.flush()

    def records(self) -> list[Record]:
        runs: dict[str, dict[str, Any]] = {}
        for kind, encoding, data in self._sink.sent:
            for name, value in _parts(kind, encoding, data):
                _operation, run, *field = name.split(".")
                target = runs.setdefault(run, {})
                if field:
                    target[field[0]] = value
                else:
                    target.update({key: item for key, item in value.items() if item is not None})
        names = {run.get("trace_id"): run.get("name") for run in runs.values() if not _is_call(run)}
        return [
            Record(names.get(run.get("trace_id")), run, bool(run.get("error")))
            for run in runs.values()
            if _is_call(run)
        ]

    def clear(self) -> None:
        self._sink.sent.clear()


def _is_call(run: dict[str, Any]) -> bool:
    return run.get("run_type") == "llm"


def _parts(kind: str, encoding: str, data: bytes) -> Iterator[tuple[str, Any]]:
    if "zstd" in encoding:
        data = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True).read()
    if not kind.startswith("multipart/"):
        return
    for part in MultipartDecoder(data, kind).parts:
        disposition = part.headers[b"Content-Disposition"].decode()
        name = disposition.partition('name="')[2].partition('"')[0]
        if name.startswith(("post.", "patch.")):
            yield name, json.loads(part.content)
