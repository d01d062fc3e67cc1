"""One profile per engine, of everything in which engines differ.

The request fields that make it send token ids and logprobs; the distribution of its logprobs; how it is recognised; how
it samples. Fields that a server of that engine could refuse are not requested: where a version takes a field only under
a condition, the row states it. Where its answers have the ids is in ``rollout_trace.wire.places``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from rollout_trace._wrong_use import did_you_mean
from rollout_trace.wire.protocols import record_of

if TYPE_CHECKING:
    from rollout_trace.data.model import LogprobsMode

EngineName: TypeAlias = Literal["vllm", "sglang", "llama-server", "dynamo", "fireworks", "together", "openai", "auto"]
"""What serves the model; ``auto``: found out with requests before the first call."""

PROMPT_FIELDS: Final[Mapping[tuple[str, str], str]] = {
    # Ran: 0.32 and 0.33. Made for serving prefill and decoding apart; a server with no connector honours it.
    ("vllm", "openai.chat"): "kv_transfer_params.prompt_token_ids",
    ("vllm", "openai.responses"): "kv_transfer_params.prompt_token_ids",
    ("vllm", "anthropic.messages"): "kv_transfer_params.prompt_token_ids",
    # Ran: 0.5.23's handlers of chat and /tokenize, over a scheduler of ours. By source, in srt/entrypoints/openai/: ids
    # take the template's place, media are dropped without a word (serving_chat.py:1947), parsers of tools and reasoning
    # run, those that read the prompt's end too (1456). Answers have ids from 0.5.19, streams from 0.5.21. Before 0.5.23
    # /tokenize ignores `add_generation_prompt` (protocol.py:1763): exact_turns.py then accepts a template only where
    # what begins an answer is part of each answer. With a built-in conversation for a template it refuses the field
    # (serving_tokenize.py:88), and ids would lose that conversation's stop texts (serving_chat.py:2392).
    ("sglang", "openai.chat"): "input_ids",
}
"""The field that takes a prompt's ids beside its messages, by engine and protocol."""


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """Body fields added to a request where its caller has not set them. A list extends the caller's list, an object the
    caller's object."""

    fields: Mapping[str, Any]
    streamed: bool | None = None
    """Only in requests that are streamed (True) or unstreamed (False); None: in both."""
    without: str | None = None
    """Never in a request that has this field, not empty."""
    only_choice: bool = False
    """Only in requests for one choice, of one prompt."""

    def applies_to(self, body: Mapping[str, Any]) -> bool:
        """True where the fields may be added to a request with this body."""
        if self.streamed is not None and self.streamed is not bool(body.get("stream")):
            return False
        if self.only_choice and not _has_one_choice(body):
            return False
        return self.without is None or not body.get(self.without)


def _has_one_choice(body: Mapping[str, Any]) -> bool:
    prompt = body.get("prompt")
    # A list of numbers is one prompt, of ids; of any other list each item is one.
    is_one = not isinstance(prompt, list) or len(prompt) < 2 or isinstance(prompt[0], int)
    return is_one and body.get("n") in (None, 1) and body.get("best_of") in (None, 1)


class Fingerprint(NamedTuple):
    """A path beside the protocol's, and the fields that only this engine has in its answer."""

    path: str
    fields: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class EngineProfile:
    """Properties of one engine."""

    name: str
    ask: Mapping[str, tuple[Ask, ...]] = field(default_factory=dict)
    """Fields to request, by protocol. Two entries that apply to one request have different fields, or items of one."""
    logprobs_mode: LogprobsMode | None = None
    """Distribution of the returned logprobs under the engine's defaults. Answers do not carry this."""
    has_ids: bool = True
    """False for a provider that never sends token ids."""
    hosts: tuple[str, ...] = ()
    """Host names of a provider; their subdomains count too."""
    owned_by: str | None = None
    """Value of ``owned_by`` in its servers' list of models."""
    fingerprint: Fingerprint | None = None
    """Recognises it where the list of models does not name it."""
    shares_owner: bool = False
    """True where other servers have the same ``owned_by``: then the fingerprint has to confirm it."""
    grammars: frozenset[str] | None = None
    """Request fields that constrain its output by a grammar; it ignores other engines' fields. None: any may."""
    grammar_in_logprobs: bool = False
    """True where a token that a grammar forces has the logprob 0, whatever the model's own was."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters that it applies where a request does not set them."""
    ignores_named_tool: bool = False
    """True where a ``tool_choice`` that names a tool has the effect of ``auto``."""
    constrains_tool_calls: bool = False
    """True where a grammar constrains every tool call, from its beginning on."""


AUTO: Final = EngineProfile("auto")
"""Placeholder for the profile of the engine that is detected behind a client's address."""

_FORMATS: Final = frozenset({"response_format", "text"})
"""Request fields with a grammar in the protocols themselves: of chat, and of Responses."""

OUTPUT_LOGPROBS: Final = "message.output_text.logprobs"

_USAGE: Final = {"stream_options": {"include_usage": True}}
"""For streams that may lack tokens: only the usage shows whether all have come."""

# vLLM 0.32 and 0.33, recorded. `logprobs` of a completions request counts alternatives; 0 gives the sampled token's own
# logprob. Logprobs are raw since the V1 engine; `--logprobs-mode processed_logprobs` changes that. Grammars: recorded.
# Versions of the weights: from 0.33 on, releases before ignore the field. Streams of chat lost the ids of what a parser
# held back until #29074 (November 2025). Completions with `echo`: with ids the text lacks the
# prompt, and with logprobs a stream of several choices fails at random, in 39 of 100 calls.
_VLLM = EngineProfile(
    "vllm",
    {
        "openai.chat": (
            Ask({"logprobs": True, "return_token_ids": True, "return_weight_versions": True}),
            Ask(_USAGE, streamed=True),
        ),
        "openai.completions": (
            Ask({"logprobs": 0, "return_token_ids": True, "return_weight_versions": True}, without="echo"),
        ),
        "openai.responses": (Ask({"enable_response_messages": True, "include": [OUTPUT_LOGPROBS]}),),
    },
    "raw",
    owned_by="vllm",
    grammars=_FORMATS | {"structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"},
    grammar_in_logprobs=True,
)

# SGLang 0.5.23, source. A chat stream refuses `return_token_ids`, and has the ids in `sglext` instead; completions
# accept it in both. Logprobs are of the logits over the temperature, unless SGLANG_RETURN_ORIGINAL_LOGPROB=1.
# Fingerprint and grammars are from the source too. Completions with `echo` and `logprobs: 0` are answered with status
# 500 before #34776 (August 2026); ids change no echo.
_SGLANG = EngineProfile(
    "sglang",
    {
        "openai.chat": (
            Ask({"logprobs": True}),
            Ask({"return_token_ids": True}, streamed=False),
            Ask({"return_input_ids_in_sglext": True, "return_output_ids_in_sglext": True}, streamed=True),
        ),
        "openai.completions": (Ask({"logprobs": 0}, without="echo"), Ask({"return_token_ids": True})),
    },
    "processed",
    owned_by="sglang",
    fingerprint=Fingerprint("get_server_info", frozenset({"tokenizer_path", "mem_fraction_static"})),
    grammars=_FORMATS | {"json_schema", "regex", "ebnf", "structural_tag"},
    grammar_in_logprobs=True,
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
            Ask({"logprobs": True, **_USAGE}, streamed=True, without="tools"),
        ),
        "openai.completions": (Ask({"logprobs": 1}), Ask(_LLAMA_EXACT, streamed=False), Ask(_USAGE, streamed=True)),
    },
    "raw",
    owned_by="llamacpp",
    fingerprint=Fingerprint("props", frozenset({"default_generation_settings", "total_slots"})),
    grammars=_FORMATS | {"grammar", "json_schema"},
    sampling={"top_k": 40, "top_p": 0.95, "min_p": 0.05},
    ignores_named_tool=True,
    constrains_tool_calls=True,
)

# NVIDIA Dynamo 1.5, in front of vLLM, SGLang and TensorRT-LLM: source of its workers, its documentation. Only vLLM has
# ids in `engine_data`, all of them on the last chunk. No field changes the text of an `echo`; completions with
# `logprobs: 0` have none. `completion_token_ids` come from every engine, and are refused if there are several choices
# or prompts; `prompt_token_ids` are ignored by frontends before #13640 (August 2026). What logprobs are of is the
# worker's setting. `owned_by` is "nvidia" of other servers too.
_DYNAMO_IDS: Final = (
    Ask({"nvext": {"extra_fields": ["engine_data", "prompt_token_ids"]}}),
    Ask({"nvext": {"extra_fields": ["completion_token_ids"]}}, only_choice=True),
    Ask(_USAGE, streamed=True),
)
_DYNAMO = EngineProfile(
    "dynamo",
    {
        "openai.chat": (Ask({"logprobs": True}), *_DYNAMO_IDS),
        "openai.completions": (Ask({"logprobs": 1}), *_DYNAMO_IDS),
    },
    owned_by="nvidia",
    fingerprint=Fingerprint("health", frozenset({"endpoints", "instances"})),
    shares_owner=True,
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

# OpenAI and Azure send no ids, and their reasoning models refuse `logprobs`, which a deployment's name does not
# show: no fields are added. A caller who wants logprobs sets them on the calls of a model that has them.
_OPENAI = EngineProfile("openai", has_ids=False, hosts=("api.openai.com", "openai.azure.com"))

# Servers name their engine in `owned_by` of their models (vLLM 0.32 and llama-server recorded, SGLang by source).
# `/version` proves nothing: several engines have one of the same shape.
_PROFILES: Final = {
    one.name: one for one in (_VLLM, _SGLANG, _LLAMA_SERVER, _DYNAMO, _FIREWORKS, _TOGETHER, _OPENAI, AUTO)
}


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
            f"engine={name!r} is not known. {did_you_mean(name, sorted(_PROFILES))} "
            "It names the program that serves the model, not its address. engine=None asks the server for nothing."
        ) from None


def profiles() -> Iterable[EngineProfile]:
    """The profiles of all engines, ``AUTO`` included."""
    return _PROFILES.values()


def capture_fields() -> dict[str, frozenset[str]]:
    """The fields that engines are asked for ids and logprobs by, none of which changes what is sampled.

    Of a field that may hold the caller's own too: the items of the list, or the names in the object, that are added.
    Empty for the others.
    """
    found: dict[str, frozenset[str]] = {}
    for ask in (ask for one in profiles() for of_protocol in one.ask.values() for ask in of_protocol):
        for name, value in ask.fields.items():
            found[name] = found.get(name, frozenset()).union(value if isinstance(value, (list, dict)) else ())
    return found


def profile_of_step(engine: str | None) -> EngineProfile:
    """The profile of a step's engine; an empty one for None and for unknown engines."""
    return _PROFILES.get(engine or "", _UNKNOWN)


def sends_no_ids(engine: str | None, protocol: str | None) -> bool:
    """True where the protocol has no place for token ids, or the provider never sends them."""
    known = _PROFILES.get(engine) if engine is not None else None
    return (protocol is not None and not record_of(protocol).has_ids) or (known is not None and not known.has_ids)


def can_request_ids(protocol: str | None) -> bool:
    """True for a protocol in which some engine sends token ids on request."""
    return any(protocol in known.ask for known in _PROFILES.values())


def added_fields(asks: tuple[Ask, ...], body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields to add to a request with this body: those it does not set, and its own lists and objects, extended.

    A null counts as not set: wrappers send unset options as nulls.
    """
    added: dict[str, Any] = {}
    for ask in asks:
        if ask.applies_to(body):
            for name, value in ask.fields.items():
                extended = _extended(value, added.get(name, body.get(name)))
                if extended is not None:
                    added[name] = extended
    if body.get("top_logprobs"):
        # `top_logprobs` without `logprobs` is refused. The caller must see that mistake; added fields would hide it.
        added.pop("logprobs", None)
    return added


def _extended(value: Any, current: Any) -> Any:
    """The value to send for a field in place of the current one; None where that stays as it is."""
    if current is None:
        return value
    if isinstance(value, list) and isinstance(current, list):
        missing = [item for item in value if item not in current]
        return [*current, *missing] if missing else None
    if isinstance(value, dict) and isinstance(current, Mapping):
        inner = {name: _extended(item, current.get(name)) for name, item in value.items()}
        inner = {name: item for name, item in inner.items() if item is not None}
        return {**current, **inner} if inner else None
    return None
