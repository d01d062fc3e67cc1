"""Shared parts of the scripted server's protocols: a request, the parts of its answer, and ``Api``, a protocol."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import zip_longest
from typing import Any, ClassVar, NamedTuple, TypeVar

from rollout_trace._python import cached_property
from rollout_trace.clients.loopback.messages import RequestRecord, Response, json_response

from ._delivery import Delivery, vllm_error
from ._sampling import Completion, Sampler, Token
from .tokenizer import AnyTokenizer

Json = dict[str, Any]
Item = TypeVar("Item")


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

    def ranked(self, token: Token, logprob: float, count: int) -> list[tuple[int, str, float]]:
        """The likeliest tokens at a position, the sampled one first: id, text, logprob. `count`: how many."""
        others = self.sampler.alternatives(token, count - 1) if count > 1 else []
        return [(token.id, token.text, logprob), *((i, self.token_text(i), value) for i, value in others)][:count]

    def name_id(self, token_id: int, text: str) -> str:
        """A token in a list of logprobs: its text, or its id where the request asks for that."""
        return f"token_id:{token_id}" if self.request.get("return_tokens_as_token_ids") else text

    def head(self, kind: str) -> Json:
        """The first fields of an answer, or of a chunk, in vLLM's shape."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def ids_or_none(self, ids: Sequence[int]) -> list[int] | None:
        """The ids if the request has `return_token_ids`, else None."""
        return list(ids) if self.request.get("return_token_ids") else None

    def usage(self, completions: Sequence[Completion]) -> Json:
        """`usage` of an unstreamed answer."""
        counts = self._counts(sum(len(c.tokens) for c in completions))
        usage = counts | {"prompt_tokens_details": None, "completion_tokens_details": None}
        return usage | self._usage_overrides(completions)

    def _counts(self, completed: int) -> Json:
        prompt = len(self.prompt_ids)
        return {"prompt_tokens": prompt, "total_tokens": prompt + completed, "completion_tokens": completed}

    def _usage_overrides(self, completions: Sequence[Completion]) -> Json:
        return {key: value for c in completions for key, value in (c.reply.usage or {}).items()}

    def extra(self, completions: Sequence[Completion]) -> Json:
        """Extra top-level fields from the replies."""
        return {key: value for c in completions for key, value in c.reply.extra.items()}

    def running_usage(self, done: Sequence[int]) -> Json:
        """`usage` of one chunk, with `stream_options.continuous_usage_stats`."""
        if not self._stream_option("continuous_usage_stats"):
            return {}
        return {"usage": self._counts(sum(done)) | {"completion_tokens_details": None}}

    def last_fingerprint(self, choice: Json) -> Json:
        """vLLM puts `system_fingerprint` on the usage event, or, without one, on the event that finishes a choice."""
        ends = choice["finish_reason"] is not None and not self._stream_option("include_usage")
        return {"system_fingerprint": self.fingerprint} if ends else {}

    def usage_event(self, chunk: Json, completions: Sequence[Completion]) -> Iterator[Json]:
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


class BadRequest(ValueError):
    """A request that the engine refuses with status 400, or another one."""

    def __init__(self, message: str, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param = param
        self.status = status


@dataclass(frozen=True)
class Ask:
    """One request that asks for an answer."""

    record: RequestRecord
    request: Mapping[str, Any]
    tokenizer: AnyTokenizer


class Api:
    """One protocol: where the prompt of a request is, and how its answer looks. Subclasses say what is special."""

    protocol: ClassVar[str]
    """Its name in ``rollout_trace.wire.protocols``."""
    ends: ClassVar[tuple[str, ...]]
    """Ends of its paths."""
    prefix: ClassVar[str] = ""
    """Of the ids of its responses."""
    takes_ids: ClassVar[bool] = False
    """Whether a request may have the ids of its prompt beside its messages."""

    def path_model(self, path: str) -> str | None:
        """The model, where the path names it."""
        return None

    def messages(self, ask: Ask) -> list[Json]:
        """The messages as chat messages. Raises BadRequest for a request that has none."""
        check_messages(self.protocol, ask.request)
        return chat_messages(self.protocol, ask.record.body)

    def tools(self, request: Mapping[str, Any]) -> list[Json] | None:
        """The tools, as the chat template gets them."""
        return request.get("tools")

    def prompts(self, ask: Ask) -> list[list[int]]:
        """Ids of the prompts; most protocols have one. Raises BadRequest for a request that has none."""
        return [ask.tokenizer.apply_chat_template(self.messages(ask), self.tools(ask.request))]

    def count(self, request: Mapping[str, Any]) -> int:
        """Number of answers to each prompt."""
        return 1

    def limits(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """The fields that limit a completion, under the names of a chat request."""
        return request

    def is_stream(self, ask: Ask) -> bool:
        """Whether the request asks for a stream."""
        return bool(ask.request.get("stream"))

    def whole(self, turn: Turn, rows: Sequence[Row]) -> object:
        """The body of an unstreamed answer."""
        raise NotImplementedError

    def stream(self, ask: Ask, delivery: Delivery, turn: Turn, rows: Sequence[Row]) -> Response:
        """A streamed answer."""
        raise NotImplementedError

    def refusal(self, ask: Ask | None, status: int, message: str, param: str | None = None) -> Json | list[Json]:
        """The body of an error. `ask` is None where the request could not be read."""
        return vllm_error(status, message, param=param)

    def refuse(self, status: int, message: str, param: str | None = None) -> Response:
        """The answer to a request that cannot be answered."""
        return json_response(status, self.refusal(None, status, message, param))


def interleaved(streams: Sequence[Iterable[Item]]) -> Iterator[tuple[int, Item]]:
    """The items of several streams in turn, each with the number of its stream."""
    for row in zip_longest(*streams):
        yield from ((at, item) for at, item in enumerate(row) if item is not None)


def arguments_object(text: str) -> Json:
    """The arguments of a call for a protocol that has them as an object; empty where they are none."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def sent_ids(ask: Ask) -> list[int] | None:
    """The ids beside the messages of a request, as vLLM takes them; None: none, or `echo`. Raises BadRequest."""
    transfer = ask.request.get("kv_transfer_params")
    if ask.request.get("echo") or not isinstance(transfer, dict) or "prompt_token_ids" not in transfer:
        return None
    ids, param = transfer["prompt_token_ids"], "kv_transfer_params.prompt_token_ids"
    if not isinstance(ids, list) or not ids or not all(type(one) is int and one >= 0 for one in ids):
        raise BadRequest(
            "`kv_transfer_params['prompt_token_ids']` must be a non-empty list of non-negative integers.", param
        )
    beyond = next((one for one in ids if one >= ask.tokenizer.vocab_size), None)
    if beyond is not None:
        raise BadRequest(f"Token id {beyond} is out of vocabulary", param)
    return ids


def check_messages(protocol: str, request: Mapping[str, Any]) -> None:
    """Raises BadRequest for a request that has no messages. A prompt is a text, an input may be one, or be missing."""
    from rollout_trace.wire.protocols import record_of

    field = record_of(protocol).request.messages
    value = request.get(field, "" if field == "input" else None)
    if field in ("input", "prompt") and isinstance(value, str):
        return
    if field == "prompt":
        raise BadRequest(f"`prompt` should be text, not {value!r}", field)
    objects(value, field)


def chat_messages(protocol: str, body: bytes) -> list[Json]:
    """Gives the messages of a request of any protocol as chat messages, system prompt first, results as `tool`."""
    # Only for scripts that ask for them: a server whose script reads the request itself needs none of this.
    from rollout_trace.data.lists import ListStore
    from rollout_trace.wire.chat_messages import convert, grouped
    from rollout_trace.wire.request import messages_of, read

    sent = messages_of(read(protocol, body, ListStore(), ListStore()))
    return [message for group in grouped(protocol, sent) for message in convert(protocol, group)]


def objects(value: object, name: str) -> Sequence[Mapping[str, Any]]:
    """A field that should be a list of objects. Raises BadRequest if it is not."""
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise BadRequest(f"`{name}` should be a list of objects, not {value!r}", name)
    return value


def texts_or_ids(value: object, encode: Callable[[str], list[int]], name: str = "prompt") -> list[list[int]]:
    """The prompts of a field: a text, ids, or a list of either. Raises BadRequest if it is something else."""
    if isinstance(value, str):
        return [encode(value)]
    if isinstance(value, list) and value and all(isinstance(item, int) for item in value):
        return [value]
    if isinstance(value, list) and value:
        return [ids for item in value for ids in texts_or_ids(item, encode, name)]
    raise BadRequest(f"`{name}` should be text, token ids, or a list of them, not {value!r}", name)
