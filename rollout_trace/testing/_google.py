"""Google's generateContent: text, thoughts and function calls, as one object, as events, or as a JSON array."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollout_trace.clients.loopback.messages import Response, json_bytes

from ._api import Api, Ask, Row, Turn, arguments_object
from ._delivery import BREAKS, Delivery, sse
from ._sampling import Completion, Token

_Json = dict[str, Any]

_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_FINISH_REASONS = {"stop": "STOP", "length": "MAX_TOKENS", "tool_calls": "STOP"}
_BROKEN = b'{"candidates": [{'


def google_error(status: int, message: str) -> _Json:
    """An error object as Google sends it."""
    return {"error": {"code": status, "message": message, "status": _STATUSES.get(status, "UNKNOWN")}}


def model_of(path: str) -> tuple[str, str]:
    """The model and the method of `/v1beta/models/MODEL:METHOD`."""
    name, _, method = path.rpartition("/")[2].partition(":")
    return name, method


def settings_of(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """The `generationConfig` of a request."""
    found = request.get("generationConfig")
    return found if isinstance(found, dict) else {}


class GoogleApi(Api):
    """POST …/models/MODEL:generateContent and :streamGenerateContent."""

    protocol = "google.generate_content"
    ends = (":generateContent", ":streamGenerateContent")

    def path_model(self, path: str) -> str | None:
        return model_of(path)[0]

    def tools(self, request: Mapping[str, Any]) -> list[_Json] | None:
        tools = [tool for tool in request.get("tools") or () if isinstance(tool, dict)]
        declared = [one for tool in tools for one in tool.get("functionDeclarations") or ()]
        return [{"type": "function", "function": one} for one in declared] or None

    def count(self, request: Mapping[str, Any]) -> int:
        return settings_of(request).get("candidateCount") or 1

    def limits(self, request: Mapping[str, Any]) -> _Json:
        settings = settings_of(request)
        return {"max_tokens": settings.get("maxOutputTokens"), "stop": settings.get("stopSequences")}

    def is_stream(self, ask: Ask) -> bool:
        return ask.record.path.endswith(":streamGenerateContent")

    def whole(self, turn: Turn, rows: Sequence[Row]) -> _Json:
        completions = [row.completion for row in rows]
        candidates = [
            _candidate(turn, index, completion, completion.tokens, is_last=True)
            for index, completion in enumerate(completions)
        ]
        return {"candidates": candidates, "usageMetadata": _usage(turn, completions), **_head(turn, completions)}

    def stream(self, ask: Ask, delivery: Delivery, turn: Turn, rows: Sequence[Row]) -> Response:
        items = [json_bytes(value) for value in _chunks(turn, [row.completion for row in rows])]
        error = json_bytes(google_error(500, BREAKS))
        if _is_sse(ask):
            return delivery.stream(items, _BROKEN, error, "text/event-stream", frame=_event)
        # The end of the array comes with nothing else, so that a cut after the last item cuts it off.
        return delivery.stream(
            items, _BROKEN, error, "application/json; charset=UTF-8", frame=_item_of_array, end=b"]\n"
        )

    def refusal(self, ask: Ask | None, status: int, message: str, param: str | None = None) -> _Json | list[_Json]:
        body = google_error(status, message)
        # A stream is a JSON array, and so is its error.
        return [body] if ask is not None and self.is_stream(ask) and not _is_sse(ask) else body


def _event(at: int, item: bytes) -> bytes:
    return sse(item).replace(b"\n\n", b"\r\n\r\n")


def _item_of_array(at: int, item: bytes) -> bytes:
    return (b",\r\n" if at else b"[") + item


def _is_sse(ask: Ask) -> bool:
    return "alt=sse" in ask.record.query.split("&")


def _chunks(turn: Turn, completions: Sequence[Completion]) -> Iterator[_Json]:
    """The objects of a streamed answer. Each has the counts so far, as Google's have."""
    head = _head(turn, completions)
    for index, completion in enumerate(completions):
        for group, is_last in turn.groups(completion.tokens):
            candidate = _candidate(turn, index, completion, group, is_last=is_last)
            is_end = is_last and index == len(completions) - 1
            counts = _usage(turn, completions) if is_end else {"promptTokenCount": len(turn.prompt_ids)}
            yield {"candidates": [candidate], "usageMetadata": counts, **head}


def _head(turn: Turn, completions: Sequence[Completion]) -> _Json:
    return {"modelVersion": turn.model, "responseId": turn.id, **turn.extra(completions)}


def _candidate(turn: Turn, index: int, completion: Completion, group: Sequence[Token], *, is_last: bool) -> _Json:
    """A candidate with what some of its tokens, or all, add to it."""
    reason = _FINISH_REASONS.get(completion.finish_reason, completion.finish_reason)
    return {
        "content": {"parts": _parts(turn, completion, group), "role": "model"},
        # As JSON of protocol buffers has no zeros, the first candidate has no index.
        **({"index": index} if index else {}),
        **({"finishReason": reason} if is_last else {}),
        **_logprobs(turn, group),
    }


def _parts(turn: Turn, completion: Completion, group: Sequence[Token]) -> list[_Json]:
    """The parts of a chunk, or of all. A function call comes whole, with its last token."""
    parts: list[_Json] = []
    more = completion.reply.extra_message if group[:1] == completion.tokens[:1] else {}
    for effect in filter(None, (token.effect for token in group)):
        if effect.kind == "call_end":
            parts.append(_call(turn, completion, effect.call))
        elif effect.kind in ("content", "reasoning") and effect.text:
            thought = {"thought": True} if effect.kind == "reasoning" else {}
            if parts and "text" in parts[-1] and ("thought" in parts[-1]) == bool(thought):
                parts[-1]["text"] += effect.text
            else:
                parts.append({"text": effect.text, **thought, **({} if thought else more)})
    return parts or [{"text": "", **more}]


def _call(turn: Turn, completion: Completion, call: int) -> _Json:
    arguments = arguments_object(completion.text("call_arguments", call))
    call_id = turn.call_id(0, call).replace("chatcmpl-tool-", "")
    made = {"functionCall": {"id": call_id, "name": completion.text("call_name", call), "args": arguments}}
    is_signed = call == 0 and completion.text("reasoning")
    return made | ({"thoughtSignature": "c2lnbmF0dXJl"} if is_signed else {})


def _logprobs(turn: Turn, tokens: Sequence[Token]) -> _Json:
    settings = settings_of(turn.request)
    if not settings.get("responseLogprobs"):
        return {}
    found: _Json = {"chosenCandidates": [_scored(turn, token.id, token.logprobs[0]) for token in tokens]}
    count = settings.get("logprobs")
    if count:
        rows = (turn.ranked(token, token.logprobs[0], count) for token in tokens)
        found["topCandidates"] = [{"candidates": [_scored(turn, i, value) for i, _, value in row]} for row in rows]
    return {"logprobsResult": found}


def _scored(turn: Turn, token_id: int, logprob: float) -> _Json:
    return {"token": turn.token_text(token_id), "tokenId": token_id, "logProbability": logprob}


def _usage(turn: Turn, completions: Sequence[Completion]) -> _Json:
    """Counts in Google's names: thoughts are not among the candidates' tokens. Zeros are left out."""
    thoughts = sum(_thoughts(completion) for completion in completions)
    sampled = sum(len(completion.tokens) for completion in completions)
    counts = {
        "promptTokenCount": len(turn.prompt_ids),
        "candidatesTokenCount": sampled - thoughts,
        "thoughtsTokenCount": thoughts,
        "totalTokenCount": len(turn.prompt_ids) + sampled,
    }
    given = {key: value for completion in completions for key, value in (completion.reply.usage or {}).items()}
    return {name: count for name, count in counts.items() if count} | given


def _thoughts(completion: Completion) -> int:
    """Tokens from the first of the reasoning to the last."""
    at = [i for i, token in enumerate(completion.tokens) if token.effect and token.effect.kind == "reasoning"]
    return at[-1] + 1 if at else 0
