"""The places where engines put token ids: one row per place, the most trusted first.

The decoders read the usual places of their protocol themselves: vLLM's ``prompt_token_ids`` at the top and
``token_ids`` on each choice, SGLang's lists of ``/generate``, and the ids among the logprobs of completions (which may
include the prompt's). All other places are here, and are read only where those have nothing. Protocols without a place
of their own for ids (Anthropic's) have all their places here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

from rollout_trace.data.model import TokenSource
from rollout_trace.wire.logprobs import id_of

EACH: Final = -1
"""Path element: every item of a list."""
CHOICE: Final = -2
"""Path element: the item at the choice's index."""

Path = tuple["str | int", ...]


CHAT: Final = frozenset({"openai.chat"})
BOTH: Final = frozenset({"openai.chat", "openai.completions"})
MESSAGES: Final = frozenset({"anthropic.messages"})


@dataclass(frozen=True, slots=True)
class Place:
    """One place of ids in an answer, and of their logprobs where these are not in the protocol's own place."""

    protocols: frozenset[str]
    """Protocols whose answers can have it."""
    ids: Path
    """Path from the choice, or from the body where ``of_body`` is set."""
    seen: str
    """The engine that puts ids there, and the evidence: recorded, its source, or its SDK's types."""
    logprobs: Path | None = None
    source: TokenSource = "engine"
    of_body: bool = False
    """From the whole body (chat, completions), or of the whole answer wherever it stands (messages)."""
    lossy: bool = False
    """The engine leaves some ids out here: used only where the usage of a single choice confirms their number."""
    only_choice: bool = False
    """Choices are not told apart here: used only where there is one choice."""
    in_parts: bool = False
    """Each chunk has its own tokens, although they are of the whole body. Others repeat theirs, or have all at once."""


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
    Place(
        CHAT,
        ("message", "generation_token_ids"),
        "NeMo-Gym 0.7 over vLLM with return_token_id_information, run; unstreamed only",
        logprobs=("message", "generation_log_probs"),
    ),
    Place(BOTH, ("provider_specific_fields", "token_ids"), "LiteLLM 1.106 over vLLM, recorded"),
    Place(
        CHAT, ("sglext", "output_ids", CHOICE), "SGLang 0.5.23 with return_output_ids_in_sglext, source", of_body=True
    ),
    Place(
        BOTH,
        ("nvext", "engine_data", "completion_token_ids"),
        "NVIDIA Dynamo 1.5 over vLLM with nvext.extra_fields, source: on the last chunk, logprobs beside them",
        logprobs=("nvext", "engine_data", "completion_logprobs"),
        of_body=True,
        only_choice=True,
    ),
    Place(
        BOTH,
        ("nvext", "completion_token_ids"),
        "NVIDIA Dynamo 1.5 with nvext.extra_fields, source",
        of_body=True,
        only_choice=True,
        in_parts=True,
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
    Place(CHAT, ("message", "prompt_token_ids"), "NeMo-Gym 0.7 over vLLM, run"),
    Place(MESSAGES, ("prompt_token_ids",), "as ``token_ids``"),
    Place(BOTH | MESSAGES, ("raw_output", "prompt_token_ids"), "Fireworks with raw_output, SDK types"),
    Place(CHAT, ("sglext", "input_ids"), "SGLang 0.5.23 with return_input_ids_in_sglext, source", of_body=True),
    Place(BOTH, ("nvext", "engine_data", "prompt_token_ids"), "NVIDIA Dynamo 1.5 over vLLM, source", of_body=True),
    Place(BOTH, ("nvext", "prompt_token_ids"), "NVIDIA Dynamo from #13640 on, its description", of_body=True),
)

ID_REQUESTS: Final = (
    "return_token_ids",
    "return_tokens",
    "return_output_ids_in_sglext",
    "enable_response_messages",
    "responseLogprobs",
)
"""Fields of a request that make an engine send ids."""
_NVEXT_REQUESTS: Final = frozenset({"engine_data", "completion_token_ids"})
"""Items of ``nvext.extra_fields`` that make NVIDIA Dynamo send ids."""
_ID_REQUESTS: Final = frozenset({*ID_REQUESTS, "nvext"})


def requests_ids(sampling: Mapping[str, Any]) -> bool:
    """Whether a request with these parameters makes engines send token ids."""
    if _ID_REQUESTS.isdisjoint(sampling):
        return False
    if any(sampling.get(name) for name in ID_REQUESTS):
        return True
    fields = look_up(sampling, ("nvext", "extra_fields"), 0)
    return isinstance(fields, list) and any(name in fields for name in _NVEXT_REQUESTS)


LOGPROBS: Final[tuple[Path, ...]] = (
    ("logprobs", "token_logprobs"),
    ("meta_info", "output_token_logprobs", EACH, 0),
)
"""Paths to logprobs in other shapes than OpenAI's, with or without ids beside them."""

TEXTS: Final[tuple[Path, ...]] = (
    ("logprobs", "tokens"),
    ("meta_info", "output_token_logprobs", EACH, 2),
)
"""Paths to the texts of tokens beside those logprobs."""


def _hints() -> tuple[bytes, ...]:
    """Bytes of which every chat answer has some where a place of the table has anything."""
    rows = [row.ids for row in (*COMPLETION_IDS, *PROMPT_IDS) if row.protocols >= CHAT]
    lists = {
        [step for step in path if isinstance(step, str)][-1] for path in (*rows, *LOGPROBS) if not _ends_each(path)
    }
    # A name that ends like another one is found with it.
    ends = [name for name in lists if not any(name != other and name.endswith(other) for other in lists)]
    # The id of an entry may be any text or number under these two names: see `_NUMERIC_ID`, and `token_id:N`.
    entries = {str(path[-1]) for path in rows if _ends_each(path)} - {"id", "token"}
    found = [f'{name}":{space}[' for name in ends for space in ("", " ")]
    return tuple(hint.encode() for hint in sorted([*found, *(f'"{name}"' for name in entries), '"token_id:']))


def _ends_each(path: Path) -> bool:
    """A value of each entry of a list, by name."""
    return len(path) > 1 and path[-2] == EACH and isinstance(path[-1], str)


# The table costs a second, untyped reading of the answer. Worth it only where its bytes have one of these, or ...
_HINTS: Final = _hints()
# ... entries whose id is a number. The answer's own id is a text.
_NUMERIC_ID: Final = re.compile(rb'"id":\s*\d')


def may_hold_ids(body: bytes) -> bool:
    """False where a chat answer has no ids in any place of the table. A test of the bytes, much faster than reading."""
    return any(hint in body for hint in _HINTS) or _NUMERIC_ID.search(body) is not None


@cache
def id_fields(protocol: str) -> tuple[bytes, ...]:
    """Names in the JSON of an answer, one of which is there where a place of a protocol has ids."""
    rows = (*COMPLETION_IDS, *PROMPT_IDS)
    return tuple({f'"{row.ids[0]}"'.encode() for row in rows if protocol in row.protocols})


def look_up(value: Any, path: Path, choice: int) -> Any:
    """The value at a path; None where there is none."""
    for at, step in enumerate(path):
        if step == EACH:
            return [look_up(item, path[at + 1 :], choice) for item in value] if isinstance(value, list) else None
        if isinstance(step, str):
            value = value.get(step) if isinstance(value, dict) else None
        else:
            position = choice if step == CHOICE else step
            value = value[position] if isinstance(value, list) and 0 <= position < len(value) else None
        if value is None:
            return None
    return value


class PartIds(NamedTuple):
    """Ids in one part of an answer: a choice of it, of one of its chunks, or the body around."""

    ids: list[int] | None = None
    """None where the part has none. An empty list is one: nothing was sampled in this part."""
    problem: str | None = None
    """What stands in a place of ids, and is no list of them."""
    in_parts: bool = False
    """The next chunk has more of them."""
    logprobs: list[Any] | None = None
    """Those that the place has beside the ids."""


def ids_of_part(rows: tuple[Place, ...], part: Any, *, of_body: bool = False) -> PartIds:
    """The ids in the first of these places that a part has.

    For protocols whose places have names of their own: there a value of another type is a fault, not another place.
    """
    for row in rows:
        if row.of_body is of_body:
            found = _strictly(part, row.ids)
            if found != PartIds():
                logprobs = None if row.logprobs is None else look_up(part, row.logprobs, 0)
                logprobs = logprobs if isinstance(logprobs, list) else None
                return found._replace(in_parts=row.in_parts, logprobs=logprobs)
    return PartIds()


def _strictly(value: Any, path: Path) -> PartIds:
    for depth, step in enumerate(path):
        if not isinstance(value, dict):
            return PartIds(None, f"`{'.'.join(map(str, path[:depth]))}` is no object")
        value = value.get(step)
        if value is None:
            return PartIds()
    if type(value) is int and path[-1] == "token_id":
        return PartIds([value])
    if isinstance(value, list) and all(type(one) is int for one in value):
        return PartIds(value)
    return PartIds(None, f"`{'.'.join(map(str, path))}` is no list of whole numbers")


@dataclass(frozen=True, slots=True)
class FoundIds:
    """Ids of one choice, and their logprobs (None: those in the protocol's own place are theirs)."""

    ids: list[int]
    logprobs: list[Any] | None
    source: TokenSource
    lossy: bool


def completion_ids(bodies: list[Any], choice: int, choices: int) -> FoundIds | None:
    """The completion ids of a chat choice, from the first place that has any in its answer's bodies (or chunks)."""
    for place in COMPLETION_IDS:
        if not place.protocols >= CHAT or (place.only_choice and choices != 1):
            continue
        scopes = bodies if place.of_body else _of_choice(bodies, choice)
        is_whole = place.of_body and not place.in_parts
        ids = _numbers(_gather(scopes, place.ids, choice, whole=is_whole))
        if ids:
            logprobs = None if place.logprobs is None else _gather(scopes, place.logprobs, choice, whole=is_whole)
            return FoundIds(ids, logprobs, place.source, place.lossy)
    return None


def prompt_ids(bodies: list[Any], choice: int) -> list[int] | None:
    """The prompt ids of a chat choice, from the first place that has any."""
    for place in PROMPT_IDS:
        if not place.protocols >= CHAT:
            continue
        scopes = bodies if place.of_body else _of_choice(bodies, choice)
        # A prompt is whole wherever it stands, in one chunk or in each: concatenated, it would be doubled.
        ids = _numbers(_gather(scopes, place.ids, choice, whole=True))
        if ids:
            return ids
    return None


def first_at(paths: tuple[Path, ...], bodies: list[Any], choice: int) -> list[Any] | None:
    """The values of a chat choice at the first of these paths that has any."""
    scopes = _of_choice(bodies, choice)
    return next(filter(None, (_gather(scopes, path, choice) for path in paths)), None)


def _gather(scopes: list[Any], path: Path, choice: int, *, whole: bool = False) -> list[Any] | None:
    """The values at a path over all chunks: concatenated, or with ``whole`` the last list that is not empty."""
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
    """Ids from the spellings of engines (numbers, floats, ``token_id:N``); None where one of them is no id."""
    if values is None:
        return None
    numbers = [_number(value) for value in values]
    return None if None in numbers else [number for number in numbers if number is not None]


def _number(value: Any) -> int | None:
    if isinstance(value, str):
        return id_of(value)
    # Together's SDK types ids as floats.
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
