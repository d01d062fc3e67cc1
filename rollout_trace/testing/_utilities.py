"""Answers of model servers that need no model: lists, counts, tokens, embeddings."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any

from rollout_trace.clients.loopback.messages import RequestRecord, Response, json_bytes, json_response

from ._anthropic import MessagesApi
from ._api import Api, BadRequest, chat_messages, check_messages, objects, texts_or_ids
from ._google import GoogleApi
from .tokenizer import AnyTokenizer

_Json = dict[str, Any]
_MAX_LENGTH = 1_048_576
_DIMENSIONS = 64


Parse = Callable[[RequestRecord], Mapping[str, Any]]


def answer(record: RequestRecord, model: str, tokenizer: AnyTokenizer, parse: Parse) -> Response:
    """Answer a request that needs no model; status 404 if it is unknown."""
    get = next((body for end, body in _GETS.items() if record.path.endswith(end)), None)
    post = next((body for end, body in _POSTS.items() if record.path.endswith(end)), None)
    if get is None and post is None:
        return json_response(404, {"detail": "Not Found"})
    if record.method != ("POST" if get is None else "GET"):
        return json_response(405, {"detail": "Method Not Allowed"})
    if get is not None:
        return json_response(200, get(model))
    return json_response(200, post(parse(record), model, tokenizer) if post is not None else None)


def models(model: str) -> _Json:
    """The list of the only model."""
    one = {"id": model, "object": "model", "created": 1_700_000_000, "owned_by": "vllm", "root": model}
    return {"object": "list", "data": [one | {"parent": None, "max_model_len": _MAX_LENGTH, "permission": []}]}


def _count(api: Api, name: str, request: Mapping[str, Any], model: str, tokenizer: AnyTokenizer) -> _Json:
    """Anthropic's, or Google's, count of the tokens of a prompt."""
    check_messages(api.protocol, request)
    messages = chat_messages(api.protocol, json_bytes(request))
    return {name: len(tokenizer.apply_chat_template(messages, api.tools(request)))}


def tokenize(request: Mapping[str, Any], model: str, tokenizer: AnyTokenizer) -> _Json:
    """The ids of a text (`prompt`) or of `messages`, as vLLM's /tokenize gives them."""
    if "messages" in request:
        messages, is_open = objects(request["messages"], "messages"), request.get("add_generation_prompt", True)
        ids = tokenizer.apply_chat_template(messages, request.get("tools"), bool(is_open))
    else:
        (ids,) = texts_or_ids(request.get("prompt"), lambda text: tokenizer.encode(text, special=True))
    strings = [tokenizer.decode([one]) for one in ids] if request.get("return_token_strs") else None
    return {"count": len(ids), "max_model_len": _MAX_LENGTH, "tokens": list(ids), "token_strs": strings}


def detokenize(request: Mapping[str, Any], model: str, tokenizer: AnyTokenizer) -> _Json:
    """The text of ids, as vLLM's /detokenize gives it."""
    ids = request.get("tokens")
    if not isinstance(ids, list) or not all(isinstance(one, int) for one in ids):
        raise BadRequest(f"`tokens` should be a list of token ids, not {ids!r}", "tokens")
    return {"prompt": tokenizer.decode(ids)}


def embeddings(request: Mapping[str, Any], model: str, tokenizer: AnyTokenizer) -> _Json:
    """A vector of length 1 for each input; the same ids give the same vector, in any process."""
    size = request.get("dimensions") or _DIMENSIONS
    prompts = texts_or_ids(request.get("input"), tokenizer.encode, "input")
    vectors: list[Any] = [_vector(ids, size) for ids in prompts]
    if request.get("encoding_format") == "base64":
        vectors = [base64.b64encode(struct.pack(f"<{size}f", *one)).decode() for one in vectors]
    data = [{"object": "embedding", "index": at, "embedding": one} for at, one in enumerate(vectors)]
    count = sum(map(len, prompts))
    usage = {"prompt_tokens": count, "total_tokens": count}
    return {"object": "list", "data": data, "model": request.get("model") or model, "usage": usage}


def _vector(ids: Sequence[int], size: int) -> list[float]:
    """The sum of a made-up direction for each id, so that texts with much in common are near each other."""
    total = [0.0] * size
    for one in set(ids):
        digest = b"".join(blake2b(f"{one}:{at}".encode()).digest() for at in range(-(-size // 64)))
        for at in range(size):
            total[at] += digest[at] / 127.5 - 1.0
    length = math.sqrt(sum(value * value for value in total)) or 1.0
    return [struct.unpack("<f", struct.pack("<f", value / length))[0] for value in total]


_GETS: dict[str, Callable[[str], _Json]] = {
    "/models": models,
    "/version": lambda _: {"version": "0.32.0"},
    "/health": lambda _: {},
    "/api/tags": lambda model: {"models": [{"name": model, "model": model, "details": {"family": "scripted"}}]},
}
_POSTS: dict[str, Callable[[Mapping[str, Any], str, AnyTokenizer], _Json]] = {
    "/messages/count_tokens": partial(_count, MessagesApi(), "input_tokens"),
    ":countTokens": partial(_count, GoogleApi(), "totalTokens"),
    "/tokenize": tokenize,
    "/detokenize": detokenize,
    "/embeddings": embeddings,
}
