"""Text completions of vLLM 0.32, its /inference/v1/generate, and SGLang's /generate (0.5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollout_trace.clients.loopback.messages import Response

from ._api import Api, Ask, Row, Turn, interleaved, texts_or_ids
from ._delivery import Delivery
from ._sampling import Completion, Token

_Json = dict[str, Any]


class _PromptApi(Api):
    """A protocol whose requests have prompts and no messages, and parameters of sampling."""

    def messages(self, ask: Ask) -> list[_Json]:
        return [{"role": "prompt", "content": ask.tokenizer.decode(ids)} for ids in self.prompts(ask)]

    def count(self, request: Mapping[str, Any]) -> int:
        return self.parameters(request).get("n") or 1

    @staticmethod
    def parameters(request: Mapping[str, Any]) -> Mapping[str, Any]:
        """The parameters of sampling, which most of these have in a field of their own."""
        found = request.get("sampling_params")
        return found if isinstance(found, dict) else {}


class CompletionsApi(_PromptApi):
    """POST …/completions."""

    protocol = "openai.completions"
    ends = ("/completions",)
    prefix = "cmpl-"

    @staticmethod
    def parameters(request: Mapping[str, Any]) -> Mapping[str, Any]:
        return request

    def prompts(self, ask: Ask) -> list[list[int]]:
        return texts_or_ids(ask.request.get("prompt"), lambda text: ask.tokenizer.encode(text, special=True))

    def whole(self, turn: Turn, rows: Sequence[Row]) -> _Json:
        completions = [row.completion for row in rows]
        return {
            **turn.head("text_completion"),
            "choices": [_choice(turn, i, row) for i, row in enumerate(rows)],
            "service_tier": None,
            "system_fingerprint": turn.fingerprint,
            "usage": turn.usage(completions),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        } | turn.extra(completions)

    def stream(self, ask: Ask, delivery: Delivery, turn: Turn, rows: Sequence[Row]) -> Response:
        return delivery.events(_events(turn, rows))


def _choice(turn: Turn, index: int, row: Row) -> _Json:
    completion = row.completion
    return {
        "index": index,
        "text": completion.text("content"),
        "logprobs": _logprobs(turn, completion.tokens, 0),
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "token_ids": turn.ids_or_none(completion.ids),
        "prompt_logprobs": None,
        "prompt_token_ids": turn.ids_or_none(row.prompt_ids),
        "routed_experts": None,
    }


def _logprobs(turn: Turn, tokens: Sequence[Token], offset: int) -> _Json | None:
    top = turn.request.get("logprobs")
    if top is None or top is False:
        return None
    arrays: _Json = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
    for token in tokens:
        text = turn.name_id(token.id, token.text)
        for value in token.logprobs:
            others = turn.sampler.alternatives(token, int(top))
            ranked = [(turn.name_id(i, turn.token_text(i)), other) for i, other in others]
            arrays["text_offset"].append(offset)
            arrays["token_logprobs"].append(value)
            arrays["tokens"].append(text)
            arrays["top_logprobs"].append({**dict(ranked), text: value})
        offset += len(text)
    return arrays


def _events(turn: Turn, rows: Sequence[Row]) -> Iterator[_Json]:
    """The events of a streamed answer, without the final `[DONE]`."""
    completions = [row.completion for row in rows]
    done = [0] * len(rows)
    for i, (choice, count) in interleaved([_choice_events(turn, i, row) for i, row in enumerate(rows)]):
        done[i] += count
        yield _chunk(turn, [choice], completions) | turn.running_usage(done)
    yield from turn.usage_event(_chunk(turn, [], completions), completions)


def _chunk(turn: Turn, choices: list[_Json], completions: Sequence[Completion]) -> _Json:
    return turn.head("text_completion") | {"choices": choices} | turn.extra(completions)


def _choice_events(turn: Turn, index: int, row: Row) -> Iterator[tuple[_Json, int]]:
    """The `choices` entry of each group of tokens, and the number of tokens."""
    offset = first = 0
    for group, last in turn.groups(row.completion.tokens):
        yield (
            {
                "index": index,
                "text": "".join(token.effect.text for token in group if token.effect is not None),
                "logprobs": _logprobs(turn, group, offset),
                "finish_reason": row.completion.finish_reason if last else None,
                "stop_reason": row.completion.stop_reason if last else None,
                "prompt_token_ids": None if first else turn.ids_or_none(row.prompt_ids),
                "token_ids": turn.ids_or_none([token.id for token in group]),
            },
            len(group),
        )
        first = 1
        offset += sum(len(turn.name_id(token.id, token.text)) for token in group)


_FINISH_REASONS = {"tool_calls": "stop"}


class VLLMGenerateApi(_PromptApi):
    """POST …/inference/v1/generate."""

    protocol = "vllm.generate"
    ends = ("/inference/v1/generate",)
    prefix = "generate-tokens-"

    def prompts(self, ask: Ask) -> list[list[int]]:
        ids = ask.request.get("token_ids")
        if not isinstance(ids, list) or not all(isinstance(one, int) for one in ids):
            raise ValueError(f"`token_ids` should be a list of token ids, not {ids!r}")
        return [ids]

    def limits(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        return self.parameters(request)

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
    top = _PromptApi.parameters(turn.request).get("logprobs")
    if top is None:
        return None
    return {"content": [_vllm_entry(turn, token, value, top) for token in tokens for value in token.logprobs]}


def _vllm_entry(turn: Turn, token: Token, logprob: float, top: int) -> _Json:
    # As in tokens of `output_mode` "tokens"; the rank of a made-up logprob is made up, too.
    ranked = [
        {"token_id": i, "logprob": value, "rank": at}
        for at, (i, _, value) in enumerate(turn.ranked(token, logprob, max(1, top)), 1)
    ]
    return ranked[0] | {"top_logprobs": ranked}


def _vllm_events(turn: Turn, completions: Sequence[Completion]) -> Iterator[_Json]:
    head: _Json = {"request_id": turn.id, "usage": None}
    tail: _Json = {"output_mode": _mode(turn)} | turn.extra(completions)
    prompt = {"prompt_token_ids": list(turn.prompt_ids)} if turn.request.get("return_token_ids") else {}
    streams = [
        [_vllm_choice(turn, i, c, group, is_last=is_last) for group, is_last in turn.groups(c.tokens)]
        for i, c in enumerate(completions)
    ]
    for _, choice in interleaved(streams):
        yield head | prompt | tail | {"choices": [choice]}
        prompt = {}
    for chunk in turn.usage_event(head | tail | {"choices": []}, completions):
        yield {name: value for name, value in chunk.items() if name != "system_fingerprint"}


def _text(turn: Turn, tokens: Sequence[Token]) -> str:
    """The text as it was sampled, tool calls and thoughts among it, without special tokens."""
    return "".join("" if turn.tokenizer.is_special(token.id) else token.text for token in tokens)


class SGLangGenerateApi(_PromptApi):
    """POST …/generate."""

    protocol = "sglang.generate"
    ends = ("/generate",)

    def prompts(self, ask: Ask) -> list[list[int]]:
        name = "text" if ask.request.get("text") is not None else "input_ids"
        return texts_or_ids(ask.request.get(name), lambda text: ask.tokenizer.encode(text, special=True), name)

    def limits(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        parameters = self.parameters(request)
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
