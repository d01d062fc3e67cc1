"""Where engines put token ids: one row a place, in the order in which they are believed.

The decoders read themselves what the engines of their protocol send in nearly every answer with ids: vLLM's
``prompt_token_ids`` at the top and ``token_ids`` on each choice, SGLang's lists of ``/generate``, and what stands among
the logprobs of completions, which may hold the prompt too. Everything else is here, and is looked for only where those
are missing. The kinds of answers that have no place for ids of their own (Anthropic's) are wholly here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from rollout_trace.data.model import TokenSource
from rollout_trace.wire.logprobs import id_of

EACH: Final = -1
"""A step into every item of a list."""
CHOICE: Final = -2
"""A step into the item of the choice's own index."""

Path = tuple["str | int", ...]


CHAT: Final = frozenset({"openai.chat"})
BOTH: Final = frozenset({"openai.chat", "openai.completions"})
MESSAGES: Final = frozenset({"anthropic.messages"})


@dataclass(frozen=True, slots=True)
class Place:
    """One place of ids in an answer, and of the logprobs that belong to them where these are not the usual ones."""

    protocols: frozenset[str]
    """In whose answers it is looked for."""
    ids: Path
    """From the choice, or from the whole body where ``of_body`` is set."""
    seen: str
    """Who puts ids there, and how we know."""
    logprobs: Path | None = None
    source: TokenSource = "engine"
    of_body: bool = False
    """From the whole body (chat, completions), or of the whole answer wherever it stands (messages)."""
    lossy: bool = False
    """The engine leaves ids out here: they are believed only where a count of the one choice confirms them."""
    only_choice: bool = False
    """The place does not tell choices apart: it is believed only where there is one."""


COMPLETION_IDS: Final = (
    Place(CHAT, ("token_ids",), "vLLM 0.32, recorded; Fireworks, SDK types"),
    Place(CHAT, ("response_token_ids",), "SGLang 0.5.23 with return_token_ids, source; unstreamed only"),
    Place(BOTH, ("raw_output", "completion_token_ids"), "Fireworks with raw_output, SDK types"),
    Place(
        CHAT,
        ("meta_info", "output_token_logprobs", EACH, 1),
        "SGLang 0.5.23 with return_meta_info, source: [logprob, id, text] a token",
        logprobs=("meta_info", "output_token_logprobs", EACH, 0),
    ),
    Place(BOTH, ("provider_specific_fields", "token_ids"), "LiteLLM 1.106 over vLLM, recorded"),
    Place(
        CHAT, ("sglext", "output_ids", CHOICE), "SGLang 0.5.23 with return_output_ids_in_sglext, source", of_body=True
    ),
    Place(CHAT, ("logprobs", "content", EACH, "token_id"), "Fireworks, SDK types", source="logprobs"),
    Place(BOTH, ("__verbose", "tokens"), "llama-server with verbose, recorded", of_body=True, only_choice=True),
    Place(
        CHAT,
        ("logprobs", "content", EACH, "id"),
        "llama-server, recorded: entries of tokens that end inside a character are missing",
        source="logprobs",
        lossy=True,
    ),
    Place(
        CHAT,
        ("logprobs", "token_ids"),
        "Together and Fireworks with a number of logprobs, SDK types (Together's are floats)",
        logprobs=("logprobs", "token_logprobs"),
        source="logprobs",
    ),
    Place(BOTH, ("delta", "token_id"), "Together, streamed, SDK types", logprobs=("logprobs",), source="logprobs"),
    Place(MESSAGES, ("token_ids",), "no server yet: where one adds vLLM's names to a message", logprobs=("logprobs",)),
    Place(
        MESSAGES,
        ("raw_output", "completion_token_ids"),
        "Fireworks with raw_output, SDK types",
        logprobs=("raw_output", "completion_logprobs"),
        of_body=True,
    ),
    Place(
        CHAT,
        ("logprobs", "content", EACH, "token"),
        "vLLM with return_tokens_as_token_ids, recorded: `token_id:N`",
        source="logprobs",
    ),
)

PROMPT_IDS: Final = (
    Place(CHAT, ("prompt_token_ids",), "SGLang 0.5.23, source; Fireworks, SDK types: on the choice"),
    Place(MESSAGES, ("prompt_token_ids",), "as ``token_ids``"),
    Place(BOTH | MESSAGES, ("raw_output", "prompt_token_ids"), "Fireworks with raw_output, SDK types"),
    Place(CHAT, ("sglext", "input_ids"), "SGLang 0.5.23 with return_input_ids_in_sglext, source", of_body=True),
)

ID_REQUESTS: Final = ("return_token_ids", "return_tokens", "return_output_ids_in_sglext", "enable_response_messages")
"""Fields of a request that make an engine send ids."""

LOGPROBS: Final[tuple[Path, ...]] = (
    ("logprobs", "token_logprobs"),
    ("meta_info", "output_token_logprobs", EACH, 0),
)
"""Where logprobs stand that are not in OpenAI's shape, also without ids."""

# What an answer must have somewhere for a look into the table to be worth its time: lists under these names, or ...
_LISTS: Final = (b"token_ids", b"output_ids", b"input_ids", b'"tokens', b"token_logprobs")
_HINTS: Final = (*(name + rest for name in _LISTS for rest in (b'":[', b'": [')), b'"token_id"', b'"token_id:')
# ... entries with a number as their id. An answer's own id is a text.
_NUMERIC_ID: Final = re.compile(rb'"id":\s*\d')

_MISSING: Final = object()


def may_hold_ids(body: bytes) -> bool:
    """False where none of the places of a chat answer can have anything."""
    return any(hint in body for hint in _HINTS) or _NUMERIC_ID.search(body) is not None


@cache
def _names(protocol: str) -> tuple[bytes, ...]:
    rows = (*COMPLETION_IDS, *PROMPT_IDS)
    return tuple({f'"{row.ids[0]}"'.encode() for row in rows if protocol in row.protocols})


def names_a_place(protocol: str, body: bytes) -> bool:
    """False where none of a protocol's places can have anything: of one whose places have names of their own."""
    return any(name in body for name in _names(protocol))


def look_up(value: Any, path: Path, choice: int) -> Any:
    """What stands at a path; None where nothing does."""
    for at, step in enumerate(path):
        if step == EACH:
            return [look_up(item, path[at + 1 :], choice) for item in value] if isinstance(value, list) else None
        value = _step(value, choice if step == CHOICE else step)
        if value is _MISSING or value is None:
            return None
    return value


def _step(value: Any, step: str | int) -> Any:
    if isinstance(step, str):
        return value.get(step, _MISSING) if isinstance(value, dict) else _MISSING
    return value[step] if isinstance(value, list) and 0 <= step < len(value) else _MISSING


@dataclass(frozen=True, slots=True)
class Found:
    """Ids of one choice, and the logprobs that stand beside them (None: the usual ones are theirs)."""

    ids: list[int]
    logprobs: list[Any] | None
    source: TokenSource
    lossy: bool
    sizes: list[int] | None
    """How many of the ids each part of the answer brought; None where one part has them all."""


def completion_ids(protocol: str, bodies: list[Any], choice: int, choices: int) -> Found | None:
    """The completion ids of a choice, from the first place that has any in the bodies of its answer (or its chunks)."""
    for place in COMPLETION_IDS:
        if protocol not in place.protocols or (place.only_choice and choices != 1):
            continue
        scopes = bodies if place.of_body else _of_choice(bodies, choice)
        ids = _numbers(_gather(scopes, place.ids, choice, whole=place.of_body))
        if ids:
            logprobs = None if place.logprobs is None else _gather(scopes, place.logprobs, choice)
            sizes = None if place.of_body else [_size(look_up(scope, place.ids, choice)) for scope in scopes]
            return Found(ids, logprobs, place.source, place.lossy, sizes)
    return None


def _size(ids: Any) -> int:
    return len(ids) if isinstance(ids, list) else int(ids is not None)


def prompt_ids(protocol: str, bodies: list[Any], choice: int) -> list[int] | None:
    """The prompt ids of a choice, from the first place that has any."""
    for place in PROMPT_IDS:
        if protocol not in place.protocols:
            continue
        scopes = bodies if place.of_body else _of_choice(bodies, choice)
        ids = _numbers(_gather(scopes, place.ids, choice, whole=True))
        if ids:
            return ids
    return None


def logprobs_alone(bodies: list[Any], choice: int) -> list[Any] | None:
    """Logprobs in another shape than OpenAI's, where no ids stand beside them."""
    scopes = _of_choice(bodies, choice)
    return next(filter(None, (_gather(scopes, path, choice) for path in LOGPROBS)), None)


def _gather(scopes: list[Any], path: Path, choice: int, *, whole: bool = False) -> list[Any] | None:
    """What stands at a path, over all chunks: joined, or the last one that is there if each is the ``whole``."""
    found: list[Any] | None = None
    for scope in scopes:
        part = look_up(scope, path, choice)
        if part is not None and not isinstance(part, dict):
            part = part if isinstance(part, list) else [part]
            found = part or found if whole else [*(found or ()), *part]
    return found


def _of_choice(bodies: list[Any], choice: int) -> list[Any]:
    found = []
    for body in bodies:
        items = body.get("choices") if isinstance(body, dict) else None
        for position, item in enumerate(items if isinstance(items, list) else ()):
            if isinstance(item, dict) and (position if item.get("index") is None else item["index"]) == choice:
                found.append(item)
    return found


def _numbers(values: list[Any] | None) -> list[int] | None:
    """Ids as engines spell them; None where one of them is no id."""
    if values is None:
        return None
    numbers = [_number(value) for value in values]
    return None if None in numbers else [number for number in numbers if number is not None]


def _number(value: Any) -> int | None:
    if isinstance(value, str):
        return id_of(value)
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
