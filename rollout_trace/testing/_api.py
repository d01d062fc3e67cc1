"""``Api``: one protocol of the scripted server, what it does differently from the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ._delivery import Delivery, vllm_error
from ._messages import RequestRecord, Response, json_response
from ._turn import Row, Turn
from .tokenizer import AnyTokenizer

Json = dict[str, Any]


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
    delivery: ClassVar[type[Delivery]] = Delivery
    takes_ids: ClassVar[bool] = False
    """Whether a request may have the ids of its prompt beside its messages."""

    def path_model(self, path: str) -> str | None:
        """The model, where the path names it."""
        return None

    def messages(self, ask: Ask) -> list[Json]:
        """The messages as chat messages, for scripts that ask for them."""
        return chat_messages(self.protocol, ask.record.body)

    def prompts(self, ask: Ask) -> list[list[int]]:
        """Ids of the prompts; most protocols have one. Raises ValueError for a request that has none."""
        raise NotImplementedError

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

    def stream(self, ask: Ask, delivery: Any, turn: Turn, rows: Sequence[Row]) -> Response:
        """A streamed answer."""
        raise NotImplementedError

    def refusal(self, ask: Ask | None, status: int, message: str, param: str | None = None) -> Json | list[Json]:
        """The body of an error. `ask` is None where the request could not be read."""
        return vllm_error(status, message, param=param)

    def refuse(self, status: int, message: str, param: str | None = None) -> Response:
        """The answer to a request that cannot be answered."""
        return json_response(status, self.refusal(None, status, message, param))


def sent_ids(ask: Ask) -> list[int] | None:
    """The ids that a request has beside its messages, as vLLM takes them; None where it has none.

    Raises BadRequest for ids that vLLM refuses. With `echo` they are ignored, as they are there.
    """
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


def chat_messages(protocol: str, body: bytes) -> list[Json]:
    """The messages of a request of any protocol as chat messages, the system prompt first; tool results have the role
    `tool`. What is no message is left out."""
    # Only for scripts that ask for them: a server whose script reads the request itself needs none of this.
    from rollout_trace.data.lists import ListStore
    from rollout_trace.wire.chat_messages import convert, grouped
    from rollout_trace.wire.request import messages_of, read

    sent = messages_of(read(protocol, body, ListStore(), ListStore()))
    return [message for group in grouped(protocol, sent) for message in convert(protocol, group)]


def prompt_messages(ask: Ask, prompts: Sequence[Sequence[int]]) -> list[Json]:
    """The prompts of a request without messages, for scripts that ask for messages."""
    return [{"role": "prompt", "content": ask.tokenizer.decode(ids)} for ids in prompts]


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
