"""A loopback service that Tinker's SDK talks to: sessions, and samples as a script gives them.

Paths and bodies as in the SDK's own source (0.38). Results are protocol buffers, of the SDK's own messages.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

import numpy as np
from tinker.proto import tinker_public_pb2 as proto

Sample: TypeAlias = dict[str, Any]
Script: TypeAlias = Callable[[dict[str, Any]], Sample]
"""From the body of a request to ``{"sequences": [(ids, logprobs, stop_reason)], ...}``, ``{"error": ...}`` or
``{"wait": True}``: no result, until the request is cancelled."""


class Service:
    """The service's address, and the bodies of the samples that it was asked for."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[dict[str, Any]] = []
        self.fetched = threading.Event()
        """Set when a result was asked for that there will not be."""
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, path: str, body: Any) -> bytes | dict[str, Any]:
        """The answer of an endpoint, JSON or the bytes of a message, to a body of either kind."""
        if path == "/api/v1/client/config":
            return {"use_pyqwest_transport": False}
        if path == "/api/v1/create_session":
            return {"type": "create_session", "session_id": "session-1"}
        if path == "/api/v1/create_sampling_session":
            return {"type": "create_sampling_session", "sampling_session_id": "sampling-1"}
        if path.startswith("/api/v1/samplers/"):
            return {"sampler_id": "sampling-1", "base_model": "tiny", "model_path": "tinker://run/sampler_weights/7"}
        if path == "/api/v1/asample":
            with self._lock:
                self.asked.append(body)
                number = len(self.asked) - 1
            ids = [f"sequence-{number}-{at}" for at in range(body["num_samples"])]
            return {"request_id": str(number), "sample_sequence_ids": ids}
        if path == "/api/v1/retrieve_future":
            return self._result(self.script(self.asked[int(body["request_id"])]))
        return {"status": "accepted", "type": "session_heartbeat"}

    def _result(self, sample: Sample) -> bytes | dict[str, Any]:
        if sample.get("wait"):
            self.fetched.set()
            return {"type": "try_again", "request_id": "0", "queue_state": "active"}
        if "error" in sample:
            return {"error": sample["error"], "category": "user"}
        message = proto.SampleResponse()
        for ids, logprobs, reason in sample["sequences"]:
            one = message.sequences.add()
            one.tokens = np.array(ids, np.int32).tobytes()
            one.logprobs = b"" if logprobs is None else np.array(logprobs, np.float32).tobytes()
            one.stop_reason = proto.STOP_REASON_STOP if reason == "stop" else proto.STOP_REASON_LENGTH
            if "topk" in sample:
                _set_top(one.topk_sampled_logprobs, sample["topk"])
        if "prompt_logprobs" in sample:
            message.prompt_logprobs = np.array(sample["prompt_logprobs"], np.float32).tobytes()
        if "topk_prompt" in sample:
            _set_top(message.topk_prompt_logprobs, sample["topk_prompt"])
        message.prompt_cache_hit_tokens = sample.get("cached", 0)
        found: bytes = message.SerializeToString()
        return found

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                sent = (
                    body if self.headers.get("Content-Type") == "application/x-protobuf" else json.loads(body or b"{}")
                )
                self._send(service.answer(self.path, sent))

            def do_GET(self) -> None:
                self._send(service.answer(self.path, {}))

            def _send(self, found: bytes | dict[str, Any]) -> None:
                kind = "application/x-protobuf" if isinstance(found, bytes) else "application/json"
                data = found if isinstance(found, bytes) else json.dumps(found).encode()
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler

    def start(self) -> None:
        """Serves until ``stop``."""
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        """Stops serving."""
        self._server.shutdown()
        self._server.server_close()


def _set_top(place: Any, rows: list[list[tuple[int, float]]]) -> None:
    """Rows of tokens with logprobs as matrices: empty places hold token 0 with a logprob of -99999."""
    width = max(map(len, rows))
    filled = [[*row, *[(0, -99999.0)] * (width - len(row))] for row in rows]
    place.length, place.k = len(rows), width
    place.token_ids = np.array([[one for one, _ in row] for row in filled], np.int32).tobytes()
    place.logprobs = np.array([[one for _, one in row] for row in filled], np.float32).tobytes()


@contextmanager
def serving(script: Script) -> Iterator[Service]:
    """A service that answers by a script."""
    service = Service(script)
    service.start()
    try:
        yield service
    finally:
        service.stop()
