"""Servers that behave as the engines do (see their rows in `rollout_trace.wire.profiles`), and calls on them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import openai

import rollout_trace as rt
from rollout_trace.clients.loopback.messages import Response, json_bytes, json_response
from rollout_trace.testing import LoopbackServer, RequestRecord, ScriptedServer
from tests.clients.either import Kind, done, drive, shown

NOT_FOUND = json_response(404, {"detail": "Not Found"})
KNOWN = {"model", "messages", "stream", "logprobs", "temperature", "seed", "max_tokens", "n", "tools", "top_logprobs"}
KNOWN |= {"stream_options", "return_weight_versions"}


class Refusing(ScriptedServer):
    """Answers status, body for chat calls whose body has fields that it does not know."""

    def __init__(self, status: int = 422, body: Callable[[str], Any] | None = None, known: set[str] = KNOWN) -> None:
        super().__init__("fine")
        self.refusal = status, body or transformers_body
        self.known = known

    def answer(self, record: RequestRecord) -> Response:
        unknown = sorted(set(record.json or {}) - self.known)
        if record.method == "POST" and unknown:
            status, body = self.refusal
            return json_response(status, body(unknown[0]))
        return super().answer(record)


def transformers_body(field: str) -> Any:
    """As `transformers serve` refuses."""
    return {"detail": f"Unexpected fields in the request: {{'{field}'}}"}


def tensorrt_body(field: str) -> Any:
    """As a server refuses whose request models forbid extra fields."""
    details = [{"type": "extra_forbidden", "loc": ["body", field], "msg": "Extra inputs are not permitted"}]
    return {"object": "error", "message": str(details), "type": "BadRequestError", "code": 400}


class SGLang(LoopbackServer):
    """Two tokens, ids 5 and 6, after a prompt of 1 2 3."""

    def answer(self, record: RequestRecord) -> Response:
        if record.path == "/get_server_info":
            return json_response(200, {"tokenizer_path": "m", "mem_fraction_static": 0.8, "version": "0.5.23"})
        if not record.path.endswith("/chat/completions"):
            return NOT_FOUND
        asked = record.json
        if asked.get("stream") and {"return_token_ids", "return_prompt_token_ids", "return_meta_info"} & asked.keys():
            return json_response(400, {"object": "error", "message": "not with stream=True", "code": 400})
        return self._stream(asked) if asked.get("stream") else json_response(200, self._whole(asked))

    def _whole(self, asked: Any) -> Any:
        ids = {"prompt_token_ids": [1, 2, 3], "response_token_ids": [5, 6]} if asked.get("return_token_ids") else {}
        message = {"role": "assistant", "content": "ab"}
        choice = {"index": 0, "message": message, "logprobs": logprobs(asked, "a", "b"), "finish_reason": "stop"}
        return {**head("chat.completion"), "choices": [choice | ids], "usage": USAGE}

    def _stream(self, asked: Any) -> Response:
        deltas = [({"role": "assistant", "content": ""}, None, None)]
        deltas += [({"content": letter}, logprobs(asked, letter), None) for letter in "ab"]
        choices: list[dict[str, Any]] = [
            {"index": 0, "delta": d, "logprobs": p, "finish_reason": end} for d, p, end in deltas
        ]
        choices[-1]["finish_reason"] = "stop"
        bodies = [{**head("chat.completion.chunk"), "choices": [choice]} for choice in choices]
        found = {"input_ids": [1, 2, 3], "output_ids": [[5, 6]]}
        wanted = {name: ids for name, ids in found.items() if asked.get(f"return_{name}_in_sglext")}
        if wanted:
            bodies.append({**head("chat.completion.chunk"), "choices": [], "sglext": wanted})
        return events(bodies)


class LlamaServer(LoopbackServer):
    """Two tokens, ids 5 and 6. Prompt ids are not sent."""

    def answer(self, record: RequestRecord) -> Response:
        if record.path == "/v1/models":
            return json_response(200, {"object": "list", "data": [{"id": "m", "owned_by": "llamacpp"}]})
        if not record.path.endswith("/chat/completions"):
            return NOT_FOUND
        asked = record.json
        if asked.get("logprobs") and asked.get("tools") and asked.get("stream"):
            message = "logprobs is not supported with tools + stream"
            return json_response(400, {"error": {"code": 400, "message": message, "type": "invalid_request_error"}})
        if asked.get("stream"):
            chunk = {
                "index": 0,
                "delta": {"content": "ab"},
                "logprobs": logprobs(asked, "a", "b"),
                "finish_reason": None,
            }
            end = {"index": 0, "delta": {}, "finish_reason": "stop"}
            return events([{**head("chat.completion.chunk"), "choices": [choice]} for choice in (chunk, end)])
        content = {"role": "assistant", "content": "ab"}
        choice = {"index": 0, "message": content, "logprobs": logprobs(asked, "a", "b"), "finish_reason": "stop"}
        body: dict[str, Any] = {**head("chat.completion"), "choices": [choice], "usage": USAGE}
        if asked.get("verbose"):
            body["__verbose"] = {"tokens": [5, 6] if asked.get("return_tokens") else []}
        return json_response(200, body)


USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def head(kind: str) -> dict[str, Any]:
    return {"id": "x", "object": kind, "created": 1, "model": "m"}


def logprobs(asked: Any, *letters: str) -> Any:
    """-1 for "a", -2 for "b"."""
    entries = [{"token": a, "logprob": 96.0 - ord(a), "bytes": [ord(a)], "top_logprobs": []} for a in letters]
    return {"content": entries} if asked.get("logprobs") else None


def events(bodies: Sequence[Any]) -> Response:
    parts = [b"data: " + json_bytes(body) + b"\n\n" for body in bodies]
    return Response(200, [("content-type", "text/event-stream")], [*parts, b"data: [DONE]\n\n"], chunked=True)


def new_client(kind: Kind, server: LoopbackServer, **options: Any) -> Any:
    made = openai.OpenAI if kind == "sync" else openai.AsyncOpenAI
    return made(**{"base_url": server.base_url, "api_key": "none", "max_retries": 0, "timeout": 60, **options})


def on(
    kind: Kind, server: LoopbackServer, scenario: Callable[[Any], Awaitable[Any]], wrap: dict[str, Any] | None
) -> tuple[Any, list[rt.Step]]:
    """What a scenario with a client of the server sees, and the steps; `wrap=None`: the client is not wrapped."""

    async def run() -> Any:
        client = new_client(kind, server)
        if wrap is not None:
            rt.wrap_openai(client, **wrap)
        try:
            return ["returned", shown(await scenario(client))]
        except Exception as error:
            return ["raised", shown(error), repr(error.__context__)]
        finally:
            await done(client.close())

    with rt.trajectory() as trajectory:
        outcome = drive(kind, run())
    return outcome, trajectory.steps


def posted(server: LoopbackServer) -> list[Any]:
    """The bodies of the generation calls."""
    return [record.json for record in server.requests if record.method == "POST"]


def got(server: LoopbackServer) -> list[str]:
    """The paths of the other requests."""
    return [record.path for record in server.requests if record.method == "GET"]
