"""Text completions in the JSON shape of vLLM 0.32."""

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


class CompletionsApi(Api):
    """POST …/completions."""

    protocol = "openai.completions"
    ends = ("/completions",)
    prefix = "cmpl-"

    def prompts(self, ask: Ask) -> list[list[int]]:
        return texts_or_ids(ask.request.get("prompt"), lambda text: ask.tokenizer.encode(text, special=True))

    def messages(self, ask: Ask) -> list[_Json]:
        return prompt_messages(ask, self.prompts(ask))

    def count(self, request: Mapping[str, Any]) -> int:
        return request.get("n") or 1

    def whole(self, turn: Turn, rows: Sequence[Row]) -> _Json:
        return completions_response(turn, rows)

    def stream(self, ask: Ask, delivery: Delivery, turn: Turn, rows: Sequence[Row]) -> Response:
        return delivery.events(completions_events(turn, rows))


def completions_response(turn: Turn, rows: Sequence[Row]) -> _Json:
    """The body of an unstreamed answer."""
    completions = [row.completion for row in rows]
    return {
        "id": turn.id,
        "object": "text_completion",
        "created": turn.created,
        "model": turn.model,
        "choices": [_choice(turn, i, row) for i, row in enumerate(rows)],
        "service_tier": None,
        "system_fingerprint": turn.fingerprint,
        "usage": turn.usage(completions),
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    } | turn.extra(completions)


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


def completions_events(turn: Turn, rows: Sequence[Row]) -> Iterator[_Json]:
    """The events of a streamed answer, without the final `[DONE]`."""
    completions = [row.completion for row in rows]
    done = [0] * len(rows)
    for groups in zip_longest(*(_choice_events(turn, i, row) for i, row in enumerate(rows))):
        for i, item in enumerate(groups):
            if item is not None:
                choice, count = item
                done[i] += count
                yield _chunk(turn, [choice], completions) | turn.running_usage(done)
    yield from turn.usage_event(_chunk(turn, [], completions), completions)


def _chunk(turn: Turn, choices: list[_Json], completions: Sequence[Completion]) -> _Json:
    head = {"id": turn.id, "object": "text_completion", "created": turn.created, "model": turn.model}
    return head | {"choices": choices} | turn.extra(completions)


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
