"""One record per protocol, of everything in which protocols differ.

A protocol is its record here and a module of this folder, which decodes its answers and, where its messages have a
shape of their own, makes chat messages of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Final, Literal, TypeAlias
from urllib.parse import unquote

if TYPE_CHECKING:
    from rollout_trace.wire.facts import ResponseFacts


MessageShape: TypeAlias = Literal["chat", "texts", "items", "blocks", "contents", "ollama", "sampled"]
"""Shape of a request's messages: chat messages (``chat``), prompts as texts or ids (``texts``), items of Responses
(``items``), messages whose content is Anthropic's blocks (``blocks``), Google's contents of parts (``contents``),
Ollama's messages and prompts (``ollama``), chat messages or prompts of samplers in the process (``sampled``)."""

SHAPES_IN: Final[Mapping[MessageShape, str]] = {
    "items": "response_items",
    "blocks": "blocks",
    "contents": "google_parts",
    "ollama": "ollama",
}
"""The module of this folder whose ``to_chat`` makes chat messages of a shape. Where several messages are one, it has
``groups``; where one tool declares several, ``declared_in``."""


@dataclass(frozen=True, slots=True)
class RequestLayout:
    """The fields of a request body that form the prompt."""

    messages: str = "messages"
    text: bool = False
    """The field may also be one text or one list of token ids, which then counts as a list of one prompt."""
    system: str | None = None
    """A field with the system prompt, which becomes the first message, with the role ``system``."""
    is_contents: bool = False
    """The messages, and the system prompt, are Google's contents: ``{"role": ..., "parts": [...]}``. One content that
    is no list counts as a list of one."""
    settings: str | None = None
    """A field with an object of sampling parameters, whose fields become those of ``sampling``."""
    aliases: tuple[tuple[str, str], ...] = ()
    """Other spellings of fields, each with the usual one."""
    streams_by_default: bool = False
    """A request without ``stream`` asks for a stream."""


@dataclass(frozen=True, slots=True)
class ProtocolRecord:
    """One protocol."""

    name: str
    paths: tuple[str, ...]
    """Ends of its endpoints' paths; none for a sampler in the process."""
    decoder: str | None
    """The module of this folder whose ``decode`` reads its answers; None: answers are kept as bytes only."""
    request: RequestLayout = RequestLayout()
    messages: MessageShape = "chat"
    sdk: str | None = None
    """The SDK whose clients use it; None where none does."""
    keys: tuple[str, ...] = ()
    """Names that the body of each request holds, by which one is recognised where no SDK is known to send it."""
    has_ids: bool = True
    """Whether it has a place for token ids, in the protocol itself or in what an engine adds to it."""
    is_retrievable: bool = False
    """An answer can be generated in the background and fetched by its id: ``GET PATH/ID``."""
    has_path_facts: bool = False
    """The path of the endpoint, not the body of the request, names the model and asks for a stream."""
    streams_arrays: bool = False
    """A stream may be one JSON array, sent item by item, in place of server-sent events."""
    streams_lines: bool = False
    """A stream is JSON objects, each on a line of its own."""


# `/chat/completions` ends in `/completions` too, and `/inference/v1/generate` in `/generate`: of two such paths the
# longer one comes first, or is never found.
RECORDS: Final = (
    ProtocolRecord("openai.chat", ("/chat/completions",), "chat", sdk="openai", keys=("messages",)),
    ProtocolRecord(
        "openai.completions",
        ("/completions",),
        "completions",
        RequestLayout("prompt", text=True),
        "texts",
        sdk="openai",
        keys=("prompt",),
    ),
    ProtocolRecord(
        "openai.responses",
        ("/responses",),
        "responses",
        RequestLayout("input", text=True, system="instructions"),
        "items",
        sdk="openai",
        keys=("model", "input"),
        is_retrievable=True,
    ),
    ProtocolRecord(
        "anthropic.messages",
        ("/v1/messages",),
        "anthropic",
        RequestLayout(system="system"),
        "blocks",
        sdk="anthropic",
        keys=("messages", "max_tokens"),
        has_ids=False,
    ),
    ProtocolRecord(
        "vllm.generate",
        ("/inference/v1/generate",),
        "generate",
        RequestLayout("text", text=True),
        "texts",
        keys=("token_ids", "sampling_params"),
    ),
    ProtocolRecord(
        "sglang.generate",
        ("/generate",),
        "generate",
        RequestLayout("text", text=True),
        "texts",
        keys=("sampling_params",),
    ),
    ProtocolRecord(
        "google.generate_content",
        (":generateContent", ":streamGenerateContent"),
        "google",
        RequestLayout(
            "contents",
            system="systemInstruction",
            is_contents=True,
            settings="generationConfig",
            aliases=(("system_instruction", "systemInstruction"), ("generation_config", "generationConfig")),
        ),
        "contents",
        sdk="google",
        keys=("contents",),
        has_path_facts=True,
        streams_arrays=True,
    ),
    ProtocolRecord(
        "ollama.chat",
        ("/api/chat",),
        "ollama",
        RequestLayout(settings="options", streams_by_default=True),
        "ollama",
        keys=("model", "messages"),
        has_ids=False,
        streams_lines=True,
    ),
    ProtocolRecord(
        "ollama.generate",
        ("/api/generate",),
        "ollama",
        RequestLayout("prompt", text=True, system="system", settings="options", streams_by_default=True),
        "ollama",
        keys=("model", "prompt"),
        has_ids=False,
        streams_lines=True,
    ),
    ProtocolRecord("openai.decisions", ("/decisions",), None, sdk="openai"),
    *(
        ProtocolRecord(
            name,
            (),
            "sampled",
            RequestLayout(text=True, aliases=(("prompt", "messages"),)),
            "sampled",
            streams_lines=True,
        )
        for name in ("vllm.llm", "tinker.sample", "transformers.generate")
    ),
)

_BY_NAME: Final = {one.name: one for one in RECORDS}
_UNKNOWN: Final = ProtocolRecord("", (), None)


def record_of(protocol: str | None) -> ProtocolRecord:
    """The record of a protocol. For None and unknown protocols: one with chat messages and without a decoder."""
    return _BY_NAME.get(protocol or "", _UNKNOWN)


def protocol_at(sdk: str, method: str, path: str) -> str | None:
    """The protocol of a request of an SDK's client, by HTTP method and path; None where it generates nothing."""
    is_post, is_get = method.lower() == "post", method.lower() == "get"
    path = path.partition("?")[0].rstrip("/")
    for one in RECORDS:
        if one.sdk == sdk and is_post and path.endswith(one.paths):
            return one.name
        if one.sdk == sdk and is_get and one.is_retrievable and path.rpartition("/")[0].endswith(one.paths):
            return one.name
    return None


def model_in_path(protocol: str | None, path: str) -> str | None:
    """The model in a path of an endpoint that names it there: of ``.../models/NAME:generateContent`` the NAME.

    Of other collections their name is kept: ``tunedModels/NAME``, ``endpoints/NAME``. None for other protocols.
    """
    if not record_of(protocol).has_path_facts:
        return None
    *_, collection, last = ["", "", *unquote(path.partition("?")[0]).rstrip("/").split("/")]
    name = last.rpartition(":")[0]
    return (name if collection in ("models", "") else f"{collection}/{name}") or None


@cache
def decoder_of(protocol: str) -> Callable[..., ResponseFacts] | None:
    """The decoder of a protocol, imported on first use; None where there is none.

    It takes ``response, *, streamed, status, request``, of an answer whose status is below 400, and gives its facts. It
    never raises: what is wrong with the bytes is in the facts.
    """
    module = record_of(protocol).decoder
    return None if module is None else import_module(f"rollout_trace.wire.{module}").decode


_PATHS: Final = sorted(
    ((path, one) for one in RECORDS if one.decoder is not None for path in one.paths),
    # Of two paths that one request ends in, the longer one counts.
    key=lambda known: -len(known[0]),
)


def protocol_of_request(method: str, url: str, body: bytes | None) -> str | None:
    """The protocol of a request; None where it is no generation call, or is not known to be one.

    Args:
        method: of HTTP.
        url: address or path.
        body: the request's; None where it is not at hand (a stream).
    """
    protocol = protocol_of_path(method, url)
    return protocol if protocol is not None and has_keys(protocol, body) else None


def protocol_of_path(method: str, url: str) -> str | None:
    """The protocol that a path may be of, whatever the body."""
    record = _record_at(url) if method.upper() == "POST" else None
    return None if record is None else record.name


def has_keys(protocol: str | None, body: bytes | None) -> bool:
    """Whether a body looks like a request of a protocol: an object with the names that each has.

    It is searched for the names and not read, which would take a millisecond of a long one. So a name may be found in
    a text: such a request is recorded, and left out when its answer is none.
    """
    if body is None or body.lstrip()[:1] != b"{":
        return False
    return all(f'"{key}"'.encode() in body for key in record_of(protocol).keys)


@lru_cache(maxsize=1024)
def _record_at(url: str) -> ProtocolRecord | None:
    # A colon may be escaped: `models/NAME%3AgenerateContent`.
    path = unquote(url.partition("?")[0].partition("#")[0]).rstrip("/")
    return next((one for known, one in _PATHS if path.endswith(known)), None)
