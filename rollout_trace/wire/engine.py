"""``rt.Engine``: an engine, and what its answers are asked for beside token ids and logprobs.

What its options add to a request of each engine, and which of them a form of call cannot meet: a form is a protocol,
streamed or not. Names of fields may lead into an object: ``sampling_params.logprobs``. What vLLM 0.32 and llama-server
send is recorded, SGLang 0.5.23 is known from its source, the others from their SDKs' types.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import lru_cache
from operator import index
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, Literal

from rollout_trace._field_docs import document_fields
from rollout_trace.wire.profiles import PROMPT_FIELDS, profile
from rollout_trace.wire.protocols import record_of

if TYPE_CHECKING:
    from rollout_trace.wire.profiles import EngineName, EngineProfile

_MOST_ALTERNATIVES = 20
"""OpenAI's limit for ``top_logprobs``, and the default of ``--max-logprobs`` of vLLM."""


@document_fields
@dataclass(frozen=True, slots=True)
class Engine:
    """The server behind a client, and what to request from it besides token ids and logprobs.

    Pass it as ``engine=`` instead of a name: ``rt.wrap_openai(client, engine=rt.Engine("vllm", top_logprobs=5))``. The
    name alone requests ids and logprobs. docs/engines.md says which engine supports which option in which kind of call;
    ``Step.extra_issues`` has what an answer lacks.

    Raises:
        TypeError: an option has the wrong type.
        ValueError: the engine is unknown, or a number is out of range.
    """

    name: EngineName
    """Name of the engine, or ``auto``."""
    _: KW_ONLY
    routed_experts: bool = False
    """Requests ``Step.routed_experts``. vLLM and SGLang send them if the server was started with
    ``--enable-return-routed-experts``."""
    prompt_logprobs: int | None = None
    """Requests ``Step.prompt_logprobs``: 0 for the prompt's own tokens, k for the k likeliest at each position as well
    (``Step.prompt_top_tokens``), -1 for the whole vocabulary; None requests none. vLLM does not use its prefix cache
    for such calls."""
    top_logprobs: int | None = None
    """Requests ``Step.top_tokens``: the number of likeliest tokens at each position of the completion, 0 to 20, or -1
    for the whole vocabulary; None requests none. 0 returns only the logprobs of the sampled tokens. vLLM's k include
    the sampled token, except in completions, where it is an additional one if it is not among them."""
    sampling_mask: bool = False
    """Requests ``Step.sampling_mask``. vLLM sends it only from ``/inference/v1/generate``, if the server was started
    with ``--return-sampling-mask``; SGLang sends it unstreamed, or from ``/generate``."""
    exact_turns: bool = False
    """If a call continues an earlier one, sends its prompt as the ids that the earlier call read and sampled; see
    ``Step.exact_turn``. vLLM from 0.32, SGLang from 0.5.23."""
    thinking: Literal["keep", "template"] = "keep"
    """With ``exact_turns``: ``keep`` leaves the thinking of earlier turns in the prompt; ``template`` sends a turn
    after one with thinking as text, so that the template decides."""
    tokenizer: str | PathLike[str] | None = None
    """With ``exact_turns``: folder with the model's tokenizer and chat template, to tokenise new messages in this
    process instead of with the server's ``/tokenize``."""
    show_added: bool = False
    """Passes on stream chunks that exist only because of fields added to the request: deltas with nothing but ids and
    logprobs. If False, they are recorded but not passed on."""

    def __post_init__(self) -> None:
        if profile(self.name) is None:
            raise ValueError("Engine(None): expected the name of an engine, or 'auto', which detects it.")
        for option in ("routed_experts", "sampling_mask", "show_added", "exact_turns"):
            if not isinstance(getattr(self, option), bool):
                raise TypeError(f"Engine({option}={getattr(self, option)!r:.80}): expected True or False.")
        if self.thinking not in ("keep", "template"):
            raise ValueError(f"Engine(thinking={self.thinking!r:.80}): expected 'keep' or 'template'.")
        if self.exact_turns and self.name != "auto" and self.name not in {engine for engine, _ in PROMPT_FIELDS}:
            known = " and ".join(sorted({engine for engine, _ in PROMPT_FIELDS}))
            raise ValueError(
                f"Engine({self.name!r}, exact_turns=True): it is not known whether this engine takes ids. Give one "
                f"that does: {known}."
            )
        if self.tokenizer is not None:
            _check_tokenizer(self.tokenizer)
        object.__setattr__(self, "prompt_logprobs", _count("prompt_logprobs", self.prompt_logprobs, None))
        object.__setattr__(self, "top_logprobs", _count("top_logprobs", self.top_logprobs, _MOST_ALTERNATIVES))


def engine_text(engine: str | Engine | None) -> str | None:
    """An ``engine`` argument as the text of an environment variable: its name, or JSON where options are set."""
    if not isinstance(engine, Engine):
        return engine
    options = {item.name: getattr(engine, item.name) for item in fields(Engine)}
    changed = {name: value for name, value in options.items() if value != getattr(Engine(engine.name), name)}
    return json.dumps({"name": engine.name, **changed}, default=str) if changed else engine.name


def engine_of_text(text: str | None) -> Any:
    """``engine_text`` back.

    Raises:
        TypeError: an option is unknown: another version wrote it.
        ValueError: the text is no JSON, or a value is out of its range.
    """
    return Engine(**json.loads(text)) if text and text.startswith("{") else text or None


def resolve(engine: str | Engine | None) -> tuple[EngineProfile | None, Engine | None]:
    """The profile for an ``engine`` argument, and its options; no options where none is set.

    Raises:
        ValueError: no engine of that name is known.
    """
    if not isinstance(engine, Engine):
        return profile(engine), None
    return profile(engine.name), None if engine == Engine(engine.name) else engine


def asks_extras(options: Engine) -> bool:
    """Whether an option is set that is about what answers hold."""
    return bool(
        options.prompt_logprobs is not None
        or options.top_logprobs is not None
        or options.routed_experts
        or options.sampling_mask
    )


def _check_tokenizer(value: Any) -> None:
    if not isinstance(value, (str, PathLike)):
        raise TypeError(f"Engine(tokenizer={value!r:.80}): expected the path of a folder with tokenizer.json.")
    # Loaded here: what is missing is to be said where it was named, not in a call.
    from rollout_trace.wire.chat_template import tokenizer_at

    try:
        tokenizer_at(str(value))
    except ValueError as error:
        raise ValueError(f"Engine(tokenizer={str(value)!r:.200}): {error}.") from None


def _count(option: str, value: Any, most: int | None) -> int | None:
    if value is None:
        return None
    allowed = f"{'a whole number from 0' if most is None else f'0 to {most}'}, -1 for the whole vocabulary, or None"
    try:
        number = index(value) if not isinstance(value, bool) else None
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"Engine({option}={value!r:.80}): expected {allowed}.")
    if number < -1 or (most is not None and number > most):
        raise ValueError(f"Engine({option}={number}): expected {allowed}.")
    return number


EXTRA_OF: Final = {
    "routed_experts": "routed_experts",
    "prompt_logprobs": "prompt_logprobs",
    "top_logprobs": "top_tokens",
    "sampling_mask": "sampling_mask",
}
"""Options of ``rt.Engine``, and the fields of ``Step`` that they are about."""

CHAT, COMPLETIONS, RESPONSES = "openai.chat", "openai.completions", "openai.responses"
VLLM_GENERATE, SGLANG_GENERATE = "vllm.generate", "sglang.generate"
_SHARED: Final = (CHAT, COMPLETIONS, RESPONSES, VLLM_GENERATE, SGLANG_GENERATE)

_DROPPED: Final = "what is between client and server, such as a proxy, may drop fields that it does not know"


@dataclass(frozen=True, slots=True)
class Wish:
    """One option of ``rt.Engine``, in one form of call."""

    option: str
    asks: Mapping[str, Any] = field(default_factory=dict)
    """Fields to add to the request, where its caller has not set them."""
    obstacle: str | None = None
    """Why answers of this form never have it, and what to do instead."""
    absent: str = ""
    """What to do where an answer lacks it although it was asked for."""

    @property
    def extra(self) -> str:
        """The field of ``Step``."""
        return EXTRA_OF[self.option]


@dataclass(frozen=True, slots=True)
class _Form:
    protocol: str
    streamed: bool

    def __str__(self) -> str:
        return f"{'streams' if self.streamed else 'answers'} of {path_of(self.protocol)}"


def path_of(protocol: str) -> str:
    """The end of the path of a protocol's endpoint."""
    return record_of(protocol).paths[0]


# Asked for in every call, on the caller's thread; an agent's calls have a handful of forms.
@lru_cache(maxsize=256)
def wishes_for(engine: str, options: Engine, protocol: str, *, streamed: bool, has_tools: bool) -> tuple[Wish, ...]:
    """The options that are set, for calls of one form. Nothing for a protocol that engines do not share.

    Args:
        engine: its name: of ``options``, or the one that was detected.
        options: what is wanted.
        protocol: of the call.
        streamed: whether the answer is streamed.
        has_tools: whether the request has tools.
    """
    if protocol not in _SHARED:
        return ()
    form = _Form(protocol, streamed)
    values = {option: getattr(options, option) for option in EXTRA_OF}
    found = []
    for option, value in values.items():
        if value is None or value is False:
            continue
        row = next((one for one in _ROWS if one.fits(engine, option, value, form)), _OTHERS)
        wish = row.wish(option, value, form)
        if engine == "llama-server" and protocol == CHAT and streamed and has_tools and wish.obstacle is None:
            wish = Wish(option, obstacle=_REFUSED)
        found.append(wish)
    return tuple(found)


_VALUE: Final = object()
"""Stands in a row's fields for the option's number."""


@dataclass(frozen=True, slots=True)
class _Row:
    """How an engine handles an option in certain forms of call. The first row that fits applies."""

    engine: str
    option: str
    protocols: tuple[str, ...] = _SHARED
    asks: Mapping[str, Any] = field(default_factory=dict)
    """Fields to add."""
    above_0: Mapping[str, Any] = field(default_factory=dict)
    """The same where the option's number is not 0."""
    obstacle: str | None = None
    """As in ``Wish``, for ``str.format`` with the form of call."""
    absent: str = ""
    streamed: bool | None = None
    """Only in streams (True) or in other answers (False); None: in both."""
    numbers: Callable[[int], bool] | None = None
    """Only for these numbers; None: for all."""

    def fits(self, engine: str, option: str, value: int, form: _Form) -> bool:
        """Returns whether the row is of this option in this form of call."""
        return (
            self.engine == engine
            and self.option in (option, "")
            and form.protocol in self.protocols
            and self.streamed in (None, form.streamed)
            and (self.numbers is None or self.numbers(value))
        )

    def wish(self, option: str, value: int, form: _Form) -> Wish:
        """Returns what the row says of the option."""
        asks = {**self.asks, **(self.above_0 if value else {})}
        asks = {name: value if item is _VALUE else item for name, item in asks.items()}
        return Wish(option, asks, None if self.obstacle is None else self.obstacle.format(form), self.absent)


def _is_whole(number: int) -> bool:
    return number == -1


_EXPERTS, _PROMPT, _TOP, _MASK = EXTRA_OF
_TEXTUAL: Final = (CHAT, COMPLETIONS)
_BY_VLLM: Final = f"use {path_of(VLLM_GENERATE)}"
_BY_SGLANG: Final = f"use {path_of(SGLANG_GENERATE)}"
_BY_TEXT: Final = (
    " names alternatives in {} by their text alone, which may be that of several ids: they are in top_logprobs"
)
_NOT_KNOWN: Final = " is not known to send this in {}: vLLM and SGLang do in some"
_UNSTREAMED: Final = "make the call without stream"
_LATER: Final = "SGLang has it from 0.5.23 on"
_NUMBER: Final = {"logprobs": _VALUE}
_TOP_NUMBER: Final = {"top_logprobs": _VALUE}

# Of vLLM experts and masks are switched on for the whole server: no request field asks for them. Versions of the
# weights are asked for with the ids: see profiles.py.
_ROWS: Final = (
    _Row("vllm", _EXPERTS, (RESPONSES,), obstacle=f"vLLM never sends them in {{}}: {_BY_VLLM}"),
    _Row("vllm", _EXPERTS, (*_TEXTUAL, SGLANG_GENERATE), streamed=True,
         obstacle=f"vLLM never sends them in {{}}: {_UNSTREAMED}, or {_BY_VLLM}"),
    _Row("vllm", _EXPERTS, absent="start vLLM with --enable-return-routed-experts"),
    _Row("vllm", _PROMPT, (RESPONSES,), obstacle="vLLM never sends them in {}: use /chat/completions or /completions"),
    _Row("vllm", _PROMPT, streamed=True, obstacle=f"vLLM never sends them in {{}}: {_UNSTREAMED}"),
    _Row("vllm", _PROMPT, (VLLM_GENERATE,), {"sampling_params.prompt_logprobs": _VALUE}, absent=_DROPPED),
    _Row("vllm", _PROMPT, asks={"prompt_logprobs": _VALUE}, absent=_DROPPED),
    _Row("vllm", _TOP, (VLLM_GENERATE,), {"sampling_params.logprobs": _VALUE}, absent=_DROPPED),
    _Row("vllm", _TOP, (CHAT,), above_0={**_TOP_NUMBER, "return_tokens_as_token_ids": True}, absent=_DROPPED),
    _Row("vllm", _TOP, (COMPLETIONS,), _NUMBER, {"return_tokens_as_token_ids": True}, absent=_DROPPED),
    # The stream has begun when the number is found too large: its connection is closed, and nobody can ask again.
    _Row("vllm", _TOP, streamed=True, obstacle="vLLM breaks off {} that ask for too many, so none are asked "
         "for: make the call without stream for their texts, or use /chat/completions for their ids"),
    _Row("vllm", _TOP, above_0=_TOP_NUMBER, obstacle=f"vLLM{_BY_TEXT}"),
    _Row("vllm", _MASK, (VLLM_GENERATE,),
         absent="start vLLM with --return-sampling-mask --logprobs-mode processed_logprobs"),
    _Row("vllm", _MASK, obstacle=f"vLLM never sends it in {{}}: {_BY_VLLM}"),
    _Row("sglang", "", numbers=_is_whole,
         obstacle="SGLang takes no -1 for the whole vocabulary: ask for a number of tokens"),
    _Row("sglang", "", (RESPONSES,), obstacle=f"SGLang never sends it in {{}}: {_BY_SGLANG}"),
    _Row("sglang", _EXPERTS, asks={"return_routed_experts": True},
         absent="start SGLang with --enable-return-routed-experts"),
    _Row("sglang", _PROMPT, (SGLANG_GENERATE,), {"return_logprob": True, "logprob_start_len": 0},
         {"top_logprobs_num": _VALUE}, absent=_DROPPED),
    _Row("sglang", _PROMPT, obstacle=f"SGLang never sends them in {{}}: {_BY_SGLANG}"),
    _Row("sglang", _TOP, (SGLANG_GENERATE,), {"return_logprob": True}, {"top_logprobs_num": _VALUE}, absent=_DROPPED),
    _Row("sglang", _TOP, (COMPLETIONS,), _NUMBER, obstacle=f"SGLang{_BY_TEXT}"),
    _Row("sglang", _TOP, above_0=_TOP_NUMBER, streamed=True, obstacle=f"SGLang{_BY_TEXT}"),
    # The alternatives of `logprobs.content` are texts; those of `meta_info` have ids.
    _Row("sglang", _TOP, above_0={**_TOP_NUMBER, "return_meta_info": True},
         absent="SGLang has their ids from 0.5.23 on"),
    _Row("sglang", _MASK, (SGLANG_GENERATE,), {"return_sampling_mask": True}, absent=_LATER),
    _Row("sglang", _MASK, (CHAT,), {"return_sampling_mask": True, "return_meta_info": True}, absent=_LATER,
         streamed=False),
    _Row("sglang", _MASK, (CHAT,), obstacle=f"SGLang never sends it in {{}}: {_UNSTREAMED}, or {_BY_SGLANG}"),
    _Row("sglang", _MASK, obstacle=f"SGLang never sends it in {{}}: {_BY_SGLANG}"),
    _Row("llama-server", _TOP, numbers=_is_whole, obstacle=f"llama-server{_NOT_KNOWN}"),
    _Row("llama-server", _TOP, (CHAT,), above_0=_TOP_NUMBER, absent=_DROPPED),
    _Row("llama-server", _TOP, (COMPLETIONS,), above_0=_NUMBER, absent=_DROPPED),
    _Row("llama-server", "", obstacle=f"llama-server{_NOT_KNOWN}"),
    _Row("dynamo", _TOP, (CHAT,), above_0=_TOP_NUMBER, obstacle=f"Dynamo{_BY_TEXT}", numbers=lambda one: one >= 0),
    _Row("dynamo", _TOP, (COMPLETIONS,), above_0=_NUMBER, obstacle=f"Dynamo{_BY_TEXT}", numbers=lambda one: one >= 0),
    _Row("dynamo", "", obstacle="Dynamo's form of it, which differs from worker to worker, is not read: set "
         "`nvext.extra_fields` in your calls, and what comes is in `Step.extra`"),
    _Row("fireworks", _TOP, _TEXTUAL, numbers=lambda one: not 0 <= one <= 5,
         obstacle="Fireworks takes 0 to 5: ask for fewer"),
    _Row("fireworks", _TOP, (COMPLETIONS,), above_0=_NUMBER, obstacle=f"Fireworks{_BY_TEXT}"),
    _Row("fireworks", _TOP, (CHAT,), above_0=_TOP_NUMBER, absent=_DROPPED),
    _Row("fireworks", "", obstacle=f"Fireworks{_NOT_KNOWN}"),
    _Row("together", _TOP, _TEXTUAL, above_0=_NUMBER, obstacle=f"Together{_BY_TEXT}", numbers=lambda one: one != -1),
    _Row("together", "", obstacle=f"Together{_NOT_KNOWN}"),
)  # fmt: skip
_REFUSED: Final = "llama-server refuses logprobs in chat streams with tools: make the call unstreamed"
_OTHERS: Final = _Row("", "", obstacle=f"this provider{_NOT_KNOWN}")

NO_TOP_K: Final = (
    "vLLM with --return-sampling-mask answers requests without top_k > 0, or with temperature 0, with HTTP 500 and an "
    "empty message: set top_k (all tokens: the size of the vocabulary) and a temperature above 0"
)


def lacks_top_k(body: Mapping[str, Any]) -> bool:
    """Whether vLLM cannot make a mask for a request with this body, unless its model's own defaults set ``top_k``."""
    inner = body.get("sampling_params")
    settings = {**body, **inner} if isinstance(inner, Mapping) else body
    top_k, temperature = settings.get("top_k"), settings.get("temperature")
    return not (isinstance(top_k, int) and top_k > 0) or temperature == 0


def value_at(body: Mapping[str, Any], name: str) -> Any:
    """The value of a field whose name may lead into an object; None where there is none."""
    outer, _, inner = name.partition(".")
    value = body.get(outer)
    return value if not inner else value.get(inner) if isinstance(value, Mapping) else None
