"""What each engine must be asked for, so that it sends token ids and logprobs, and what its logprobs are of.

One table. Fields that a server of that engine could refuse are not in it: where a version takes a field only under a
condition, the row says which.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

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


AUTO: Final = EngineProfile("auto")
"""Stands for the profile of whatever engine is found behind a client's address."""

_OUTPUT_LOGPROBS: Final = "message.output_text.logprobs"

# vLLM 0.32, recorded. `logprobs` of a completions request counts alternatives; 0 gives the sampled token's own logprob.
# Logprobs are raw since the V1 engine; `--logprobs-mode processed_logprobs` changes that.
_VLLM = EngineProfile(
    "vllm",
    {
        "openai.chat": (Ask({"logprobs": True, "return_token_ids": True}),),
        "openai.completions": (Ask({"logprobs": 0, "return_token_ids": True}),),
        "openai.responses": (Ask({"enable_response_messages": True, "include": [_OUTPUT_LOGPROBS]}),),
    },
    "raw",
)

# SGLang 0.5.23, source. A chat stream refuses `return_token_ids`, and says the ids in `sglext` instead; completions
# take it in both. Logprobs are of the logits over the temperature, unless SGLANG_RETURN_ORIGINAL_LOGPROB=1.
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
)

# Fireworks, types of its SDK 1.2.30. A number of logprobs (0 to 5) gives the arrays of the completions protocol. What
# its logprobs are of is not documented (beside `logprob` it has a `sampling_logprob`).
_FIREWORKS = EngineProfile(
    "fireworks",
    {
        "openai.chat": (Ask({"logprobs": True, "return_token_ids": True}),),
        "openai.completions": (Ask({"logprobs": 1, "return_token_ids": True}),),
    },
)

# Together, types of its SDK 3.1.1: with `logprobs`, a number in chat too, completion ids come in `logprobs.token_ids`,
# streamed in `delta.token_id`. Prompt ids are never sent.
_TOGETHER = EngineProfile(
    "together", {"openai.chat": (Ask({"logprobs": 1}),), "openai.completions": (Ask({"logprobs": 1}),)}
)

# OpenAI and Azure send no ids, and their reasoning models refuse `logprobs`, which cannot be told from a deployment's
# name: they are asked for nothing. A caller who wants logprobs sets them on the calls of a model that has them.
_OPENAI = EngineProfile("openai", has_ids=False)

_PROFILES: Final = {one.name: one for one in (_VLLM, _SGLANG, _LLAMA_SERVER, _FIREWORKS, _TOGETHER, _OPENAI, AUTO)}


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


# Anthropic's protocol has no place for ids, whoever speaks it.
_PROTOCOLS_WITHOUT_IDS: Final = frozenset({"anthropic.messages"})


def sends_no_ids(engine: str | None, protocol: str | None) -> bool:
    """True where there are no token ids to ask for: in a protocol without a place for them, of a provider without."""
    known = _PROFILES.get(engine) if engine is not None else None
    return protocol in _PROTOCOLS_WITHOUT_IDS or (known is not None and not known.has_ids)


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
