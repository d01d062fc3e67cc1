"""vLLM's /inference/v1/generate (0.32) and SGLang's /generate (0.5): token ids in and out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from ._api import Api, Ask, prompt_messages, texts_or_ids
from ._delivery import Delivery
from ._messages import Response
from ._sampling import Completion, Token
from ._turn import Row, Turn

_Json = dict[str, Any]

_FINISH_REASONS = {"tool_calls": "stop"}


def _parameters(request: Mapping[str, Any]) -> Mapping[str, Any]:
    found = request.get("sampling_params")
    return found if isinstance(found, dict) else {}


class VLLMGenerateApi(Api):
    """POST …/inference/v1/generate."""

    protocol = "vllm.generate"
    ends = ("/inference/v1/generate",)
    prefix = "generate-tokens-"

    def prompts(self, ask: Ask) -> list[list[int]]:
        ids = ask.request.get("token_ids")
        if not isinstance(ids, list) or not all(isinstance(one, int) for one in ids):
            raise ValueError(f"`token_ids` should be a list of token ids, not {ids!r}")
        return [ids]

    def messages(self, ask: Ask) -> list[_Json]:
        return prompt_messages(ask, self.prompts(ask))

    def count(self, request: Mapping[str, Any]) -> int:
        return _parameters(request).get("n") or 1

    def limits(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        return _parameters(request)

    def whole(self, turn: Turn, rows: Sequence[Row]) -> _Json:
        completions = [row.completion for row in rows]
        usage = turn.usage(completions)
        return {
            "request_id": turn.id,
            "model": turn.model,
            "created": turn.created,
            "usage": usage | {"prompt_tokens_details": {"cached_tokens": 0}},
            "prompt_logprobs": None,
            "prompt_token_ids": turn.ids_or_none(turn.prompt_ids),
            "metrics": None,
            "kv_transfer_params": None,
            "output_mode": _mode(turn),
            "choices": [_vllm_choice(turn, i, c, c.tokens, is_last=True) for i, c in enumerate(completions)],
        } | turn.extra(completions)

    def stream(self, ask: Ask, delivery: Delivery, turn: Turn, rows: Sequence[Row]) -> Response:
        return delivery.events(_vllm_events(turn, [row.completion for row in rows]))


def _mode(turn: Turn) -> str:
    return "text" if turn.request.get("output_mode") == "text" else "tokens"


def _vllm_choice(turn: Turn, index: int, completion: Completion, tokens: Sequence[Token], *, is_last: bool) -> _Json:
    reason = _FINISH_REASONS.get(completion.finish_reason, completion.finish_reason)
    version = [{"version": "default", "start": 0, "end": len(completion.tokens)}]
    choice: _Json = {
        "index": index,
        "finish_reason": reason if is_last else None,
        "stop_reason": completion.stop_reason if is_last else None,
        "token_ids": [token.id for token in tokens],
        "routed_experts": None,
        "weight_versions": version if is_last else None,
        "logprobs": _vllm_logprobs(turn, tokens),
    }
    return choice | ({"text": _text(turn, tokens)} if _mode(turn) == "text" else {})


def _vllm_logprobs(turn: Turn, tokens: Sequence[Token]) -> _Json | None:
    top = _parameters(turn.request).get("logprobs")
    if top is None:
        return None
    return {"content": [_vllm_entry(turn, token, value, top) for token in tokens for value in token.logprobs]}


def _vllm_entry(turn: Turn, token: Token, logprob: float, top: int) -> _Json:
    # As in tokens of `output_mode` "tokens"; the rank of a made-up logprob is made up, too.
    own = {"token_id": token.id, "logprob": logprob, "rank": 1}
    others = [{"token_id": i, "logprob": value} for i, value in turn.sampler.alternatives(token, max(0, top - 1))]
    ranked = [own, *({**other, "rank": at} for at, other in enumerate(others, 2))]
    return own | {"top_logprobs": ranked}


def _vllm_events(turn: Turn, completions: Sequence[Completion]) -> Iterator[_Json]:
    head: _Json = {"request_id": turn.id, "usage": None}
    tail: _Json = {"output_mode": _mode(turn)} | turn.extra(completions)
    prompt = {"prompt_token_ids": list(turn.prompt_ids)} if turn.request.get("return_token_ids") else {}
    streams = [
        [_vllm_choice(turn, i, c, group, is_last=is_last) for group, is_last in turn.groups(c.tokens)]
        for i, c in enumerate(completions)
    ]
    for row in zip_longest(*streams):
        for choice in row:
            if choice is not None:
                yield head | prompt | tail | {"choices": [choice]}
                prompt = {}
    for chunk in turn.usage_event(head | tail | {"choices": []}, completions):
        yield {name: value for name, value in chunk.items() if name != "system_fingerprint"}


def _text(turn: Turn, tokens: Sequence[Token]) -> str:
    """The text as it was sampled, tool calls and thoughts among it, without special tokens."""
    return "".join("" if turn.tokenizer.is_special(token.id) else token.text for token in tokens)


class SGLangGenerateApi(Api):
    """POST …/generate."""

    protocol = "sglang.generate"
    ends = ("/generate",)

    def prompts(self, ask: Ask) -> list[list[int]]:
        name = "text" if ask.request.get("text") is not None else "input_ids"
        return texts_or_ids(ask.request.get(name), lambda text: ask.tokenizer.encode(text, special=True), name)

    def messages(self, ask: Ask) -> list[_Json]:
        return prompt_messages(ask, self.prompts(ask))

    def count(self, request: Mapping[str, Any]) -> int:
        return _parameters(request).get("n") or 1

    def limits(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        parameters = _parameters(request)
        return {"max_tokens": parameters.get("max_new_tokens"), "stop": parameters.get("stop")}

    def whole(self, turn: Turn, rows: Sequence[Row]) -> _Json | list[_Json]:
        found = [_sglang_sample(turn, at, row, len(row.completion.tokens)) for at, row in enumerate(rows)]
        return found if len(found) > 1 or isinstance(turn.request.get("text"), list) else found[0]

    def stream(self, ask: Ask, delivery: Delivery, turn: Turn, rows: Sequence[Row]) -> Response:
        return delivery.events(_sglang_events(turn, rows))


def _sglang_events(turn: Turn, rows: Sequence[Row]) -> Iterator[_Json]:
    """Each chunk repeats what came before, as without `--incremental-streaming-output`."""
    for at, row in enumerate(rows):
        count = 0
        for group, _ in turn.groups(row.completion.tokens):
            count += len(group)
            yield _sglang_sample(turn, at, row, count) | ({"index": at} if len(rows) > 1 else {})


def _sglang_sample(turn: Turn, at: int, row: Row, count: int) -> _Json:
    completion = row.completion
    tokens, is_last = completion.tokens[:count], count == len(completion.tokens)
    info = {
        "id": turn.id if at == 0 else f"{turn.id}-{at}",
        "finish_reason": _sglang_reason(turn, completion) if is_last else None,
        "prompt_tokens": len(row.prompt_ids),
        "completion_tokens": count,
        "cached_tokens": 0,
        "weight_version": "default",
    } | (_sglang_logprobs(turn, row, tokens) if turn.request.get("return_logprob") else {})
    return {"text": _text(turn, tokens), "output_ids": [token.id for token in tokens], "meta_info": info} | dict(
        completion.reply.extra
    )


def _sglang_reason(turn: Turn, completion: Completion) -> _Json:
    if completion.finish_reason == "length":
        return {"type": "length", "length": len(completion.tokens)}
    stopped_by = completion.stop_reason if completion.stop_reason is not None else turn.tokenizer.eos_token_id
    return {"type": _FINISH_REASONS.get(completion.finish_reason, completion.finish_reason), "matched": stopped_by}


def _sglang_logprobs(turn: Turn, row: Row, tokens: Sequence[Token]) -> _Json:
    with_text, top = turn.request.get("return_text_in_logprobs"), turn.request.get("top_logprobs_num") or 0
    start = turn.request.get("logprob_start_len")
    triples = [[value, token.id, token.text if with_text else None] for token in tokens for value in token.logprobs]
    found: _Json = {"input_token_logprobs": [], "output_token_logprobs": triples}
    if start is not None and start >= 0:
        scored = turn.sampler.score(row.prompt_ids)
        found["input_token_logprobs"] = [[value, i, None] for value, i in zip(scored, row.prompt_ids, strict=True)]
        del found["input_token_logprobs"][:start]
    if top:
        others = ([[v, i, None] for i, v in turn.sampler.alternatives(token, top - 1)] for token in tokens)
        found["output_top_logprobs"] = [[own, *rest] for own, rest in zip(triples, others, strict=True)]
    return found
