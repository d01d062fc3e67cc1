"""``Turn``: one request and the parts of its answer that all response shapes share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

from rollout_trace._python import cached_property

from ._sampling import Completion, Sampler, Token
from .tokenizer import AnyTokenizer

_Json = dict[str, Any]


class Row(NamedTuple):
    """One choice: its prompt and its completion."""

    prompt_ids: Sequence[int]
    completion: Completion


@dataclass(frozen=True)
class Turn:
    """One request that is being answered."""

    request: Mapping[str, Any]
    model: str
    number: int  # of the request; with the server's seed it gives the ids of responses and tool calls
    sampler: Sampler
    chunk_tokens: int
    prompt_ids: Sequence[int]
    prefix: str = "chatcmpl-"
    created: int = 1_700_000_000
    fingerprint: str = "vllm-0.32.0-scripted"

    @property
    def tokenizer(self) -> AnyTokenizer:
        return self.sampler.tokenizer

    @cached_property
    def id(self) -> str:
        return self.prefix + self._name("response")

    def call_id(self, choice: int, call: int) -> str:
        """Id of a tool call, unique within a server."""
        return "chatcmpl-tool-" + self._name(f"{choice}:{call}")

    def _name(self, what: str) -> str:
        return blake2b(f"{self.sampler.seed}:{self.number}:{what}".encode(), digest_size=8).hexdigest()

    def token_text(self, token_id: int) -> str:
        """One id as text; empty if it is not a whole UTF-8 character."""
        try:
            return self.tokenizer.token_bytes(token_id).decode()
        except UnicodeDecodeError:
            return ""

    def name_id(self, token_id: int, text: str) -> str:
        """A token in a list of logprobs: its text, or its id where the request asks for that."""
        return f"token_id:{token_id}" if self.request.get("return_tokens_as_token_ids") else text

    def ids_or_none(self, ids: Sequence[int]) -> list[int] | None:
        """The ids if the request has `return_token_ids`, else None."""
        return list(ids) if self.request.get("return_token_ids") else None

    def usage(self, completions: Sequence[Completion]) -> _Json:
        """`usage` of an unstreamed answer."""
        counts = self._counts(sum(len(c.tokens) for c in completions))
        usage = counts | {"prompt_tokens_details": None, "completion_tokens_details": None}
        return usage | self._usage_overrides(completions)

    def _counts(self, completed: int) -> _Json:
        prompt = len(self.prompt_ids)
        return {"prompt_tokens": prompt, "total_tokens": prompt + completed, "completion_tokens": completed}

    def _usage_overrides(self, completions: Sequence[Completion]) -> _Json:
        return {key: value for c in completions for key, value in (c.reply.usage or {}).items()}

    def extra(self, completions: Sequence[Completion]) -> _Json:
        """Extra top-level fields from the replies."""
        return {key: value for c in completions for key, value in c.reply.extra.items()}

    def running_usage(self, done: Sequence[int]) -> _Json:
        """`usage` of one chunk, with `stream_options.continuous_usage_stats`."""
        if not self._stream_option("continuous_usage_stats"):
            return {}
        return {"usage": self._counts(sum(done)) | {"completion_tokens_details": None}}

    def last_fingerprint(self, choice: _Json) -> _Json:
        """vLLM puts `system_fingerprint` on the usage event, or, without one, on the event that finishes a choice."""
        ends = choice["finish_reason"] is not None and not self._stream_option("include_usage")
        return {"system_fingerprint": self.fingerprint} if ends else {}

    def usage_event(self, chunk: _Json, completions: Sequence[Completion]) -> Iterator[_Json]:
        """The last event, with `stream_options.include_usage`."""
        if self._stream_option("include_usage"):
            counts = self._counts(sum(len(c.tokens) for c in completions)) | self._usage_overrides(completions)
            yield chunk | {"usage": counts, "system_fingerprint": self.fingerprint}

    def _stream_option(self, name: str) -> bool:
        return bool((self.request.get("stream_options") or {}).get(name))

    def groups(self, tokens: Sequence[Token]) -> Iterator[tuple[Sequence[Token], bool]]:
        """Tokens by event, and whether the event is the last. No token at all still makes one (last) event."""
        size = self.chunk_tokens
        for at in range(0, max(1, len(tokens)), size):
            yield tokens[at : at + size], at + size >= len(tokens)
