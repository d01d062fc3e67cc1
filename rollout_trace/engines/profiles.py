"""The engines: one profile each, of all that is not the same in every one of them.

What it must be asked for, so that it sends token ids and logprobs; what its logprobs are of; how it is recognised; how
it samples. Fields that a server of that engine could refuse are not asked for: where a version takes a field only under
a condition, the row says which. Where its answers hold the ids is in ``rollout_trace.wire.places``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from rollout_trace.wire.protocols import record_of

if TYPE_CHECKING:
    from rollout_trace.data.model import LogprobsMode

EngineName: TypeAlias = Literal["vllm", "sglang", "llama-server", "fireworks", "together", "openai", "auto"]


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """Body fields that a request gets where its caller has not set them. A list is added to the caller's list."""

    fields: Mapping[str, Any]
    streamed: bool | None = None
    """Only in requests that are streamed (True) or not (False); None: in both."""
    without: str | None = None
    """Never in a request that has this field."""

    def suits(self, body: Mapping[str, Any]) -> bool:
        """True where a request with this body may be asked so."""
        if self.streamed is not None and self.streamed is not bool(body.get("stream")):
            return False
        return self.without is None or not body.get(self.without)


class Sign(NamedTuple):
    """A path beside the protocol's, and the fields that only this engine answers it with."""

    path: str
    fields: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class EngineProfile:
    """One engine."""

    name: str
    ask: Mapping[str, tuple[Ask, ...]] = field(default_factory=dict)
    """By protocol. Two that suit one request name different fields."""
    logprobs_mode: LogprobsMode | None = None
    """What its logprobs are of, unless it was configured otherwise: no answer says so."""
    has_ids: bool = True
    """False of a provider that never sends token ids."""
    hosts: tuple[str, ...] = ()
    """Host names of a provider, their subdomains included."""
    owned_by: str | None = None
    """What its servers write as ``owned_by`` of their models."""
    sign: Sign | None = None
    """How it is recognised where the list of its models does not name it."""
    grammars: frozenset[str] | None = None
    """Request fields that it reads as a grammar, all others ignored; None: it may be any of them."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """What it does with the distribution unless it is told otherwise."""
    ignores_named_tool: bool = False
    """A ``tool_choice`` that names a tool is as ``auto``."""
    constrains_tool_calls: bool = False
    """A grammar holds from the beginning of every tool call on."""


AUTO: Final = EngineProfile("auto")
"""Stands for the profile of whatever engine is found behind a client's address."""

_FORMATS: Final = frozenset({"response_format", "text"})
"""The grammars of the protocols themselves: of chat, and of Responses."""

_OUTPUT_LOGPROBS: Final = "message.output_text.logprobs"

# vLLM 0.32, recorded. `logprobs` of a completions request counts alternatives; 0 gives the sampled token's own logprob.
# Logprobs are raw since the V1 engine; `--logprobs-mode processed_logprobs` changes that. Grammars: recorded.
_VLLM = EngineProfile(
    "vllm",
    {
        "openai.chat": (Ask({"logprobs": True, "return_token_ids": True}),),
        "openai.completions": (Ask({"logprobs": 0, "return_token_ids": True}),),
        "openai.responses": (Ask({"enable_response_messages": True, "include": [_OUTPUT_LOGPROBS]}),),
    },
    "raw",
    owned_by="vllm",
    grammars=_FORMATS | {"structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"},
)

# SGLang 0.5.23, source. A chat stream refuses `return_token_ids`, and says the ids in `sglext` instead; completions
# take it in both. Logprobs are of the logits over the temperature, unless SGLANG_RETURN_ORIGINAL_LOGPROB=1. Its sign
# and its grammars are from the source too.
_SGLANG = EngineProfile(
    "sglang",
    {
        "openai.chat": (
            Ask({"logprobs": True}),
            Ask({"return_token_ids": True}, streamed=False),
            Ask({"return_input_ids_in_sglext": True, "return_output_ids_in_sglext": True}, streamed=True),
        ),
        "openai.completions": (Ask({"logprobs": 0, "return_token_ids": True}),),
    },
    "processed",
    owned_by="sglang",
    sign=Sign("get_server_info", frozenset({"tokenizer_path", "mem_fraction_static"})),
    grammars=_FORMATS | {"json_schema", "regex", "ebnf", "structural_tag"},
)

# llama-server, recorded. Exact ids are in `__verbose.tokens`, which a stream leaves empty: there only the lossy ids
# beside the logprobs are left. `logprobs` with tools in a stream is answered with status 400, and in completions
# `logprobs: 0` means none. Prompt ids are never sent.
_LLAMA_EXACT: Final = {"verbose": True, "return_tokens": True}
_LLAMA_SERVER = EngineProfile(
    "llama-server",
    {
        "openai.chat": (
            Ask({"logprobs": True, **_LLAMA_EXACT}, streamed=False),
            Ask({"logprobs": True}, streamed=True, without="tools"),
        ),
        "openai.completions": (Ask({"logprobs": 1}), Ask(_LLAMA_EXACT, streamed=False)),
    },
    "raw",
    owned_by="llamacpp",
    sign=Sign("props", frozenset({"default_generation_settings", "total_slots"})),
    grammars=_FORMATS | {"grammar", "json_schema"},
    sampling={"top_k": 40, "top_p": 0.95, "min_p": 0.05},
    ignores_named_tool=True,
    constrains_tool_calls=True,
)

# Fireworks, types of its SDK 1.2.30. A number of logprobs (0 to 5) gives the arrays of the completions protocol. What
# its logprobs are of is not documented (beside `logprob` it has a `sampling_logprob`).
_FIREWORKS = EngineProfile(
    "fireworks",
    {
        "openai.chat": (Ask({"logprobs": True, "return_token_ids": True}),),
        "openai.completions": (Ask({"logprobs": 1, "return_token_ids": True}),),
    },
    hosts=("fireworks.ai",),
)

# Together, types of its SDK 3.1.1: with `logprobs`, a number in chat too, completion ids come in `logprobs.token_ids`,
# streamed in `delta.token_id`. Prompt ids are never sent.
_TOGETHER = EngineProfile(
    "together",
    {"openai.chat": (Ask({"logprobs": 1}),), "openai.completions": (Ask({"logprobs": 1}),)},
    hosts=("together.xyz", "together.ai"),
)

# OpenAI and Azure send no ids, and their reasoning models refuse `logprobs`, which cannot be told from a deployment's
# name: they are asked for nothing. A caller who wants logprobs sets them on the calls of a model that has them.
_OPENAI = EngineProfile("openai", has_ids=False, hosts=("api.openai.com", "openai.azure.com"))

# Servers name themselves in `owned_by` of their models (vLLM 0.32 and llama-server recorded, SGLang by source).
# `/version` proves nothing: several engines have one of the same shape.
_PROFILES: Final = {one.name: one for one in (_VLLM, _SGLANG, _LLAMA_SERVER, _FIREWORKS, _TOGETHER, _OPENAI, AUTO)}


_UNKNOWN: Final = EngineProfile("")


def profile(name: str | None) -> EngineProfile | None:
    """The profile of an engine; None for None.

    Raises:
        ValueError: no engine of that name is known.
    """
    if name is None:
        return None
    try:
        return _PROFILES[name]
    except (KeyError, TypeError):
        raise ValueError(
            f"engine={name!r} is not known; known: {', '.join(sorted(_PROFILES))}. "
            "engine=None asks the server for nothing."
        ) from None


def profiles() -> Iterable[EngineProfile]:
    """All that are known."""
    return _PROFILES.values()


def profile_of_step(engine: str | None) -> EngineProfile:
    """The profile of the engine that a step names; where it names none, or one that is not known, an empty one."""
    return _PROFILES.get(engine or "", _UNKNOWN)


def sends_no_ids(engine: str | None, protocol: str | None) -> bool:
    """True where there are no token ids to ask for: in a protocol without a place for them, of a provider without."""
    known = _PROFILES.get(engine) if engine is not None else None
    return (protocol is not None and not record_of(protocol).has_ids) or (known is not None and not known.has_ids)


def can_be_asked(protocol: str | None) -> bool:
    """True of a protocol in which some engine is asked for token ids."""
    return any(protocol in known.ask for known in _PROFILES.values())


def added_fields(asks: tuple[Ask, ...], body: Mapping[str, Any]) -> dict[str, Any]:
    """What a request with this body gets added: fields it does not set, and its lists with what they lack.

    A null sets nothing: wrappers send the options that nobody gave as nulls.
    """
    added: dict[str, Any] = {}
    for ask in asks:
        if ask.suits(body):
            for name, value in ask.fields.items():
                given = body.get(name)
                if given is None:
                    added[name] = value
                elif isinstance(value, list) and isinstance(given, list):
                    lacking = [item for item in value if item not in given]
                    if lacking:
                        added[name] = [*given, *lacking]
    if body.get("top_logprobs"):
        # Refused without `logprobs`: that is the caller's mistake to see, and not ours to mend.
        added.pop("logprobs", None)
    return added
