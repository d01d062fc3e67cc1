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
    """The server behind a client, and what is asked of it beside token ids and logprobs.

    For ``engine=`` wherever a name is taken: ``rt.wrap_openai(client, engine=rt.Engine("vllm", top_logprobs=5))``.
    The name alone asks for ids and logprobs. Which engine answers which option, in which form of call, is in the
    documentation of engines; what an answer lacks is in ``Step.extra_issues``.

    Raises:
        TypeError: an option is of another type.
        ValueError: the engine is unknown, or a number is out of its range.
    """

    name: EngineName
    """Name of the engine, or ``auto``."""
    _: KW_ONLY
    routed_experts: bool = False
    """``Step.routed_experts``. vLLM and SGLang send them if the server was started with
    ``--enable-return-routed-experts``."""
    prompt_logprobs: int | None = None
    """``Step.prompt_logprobs``: 0 for the prompt's own tokens, k for the k likeliest at each position too
    (``Step.prompt_top_tokens``), -1 for the whole vocabulary; None asks for none. vLLM does not use its prefix cache
    for such a call."""
    top_logprobs: int | None = None
    """``Step.top_tokens``: the number of likeliest tokens at each position of the completion, 0 to 20, or -1 for the
    whole vocabulary; None asks for none. 0 gives the logprobs of the sampled tokens alone. vLLM's k include the sampled
    token, save in completions, where it is one more if it is not among them."""
    sampling_mask: bool = False
    """``Step.sampling_mask``. vLLM sends it from ``/inference/v1/generate`` alone, if the server was started with
    ``--return-sampling-mask``; SGLang unstreamed, or from ``/generate``."""
    exact_turns: bool = False
    """Sends the prompt of a call that continues an earlier one as the ids that were served and sampled before it:
    ``Step.exact_turn``. vLLM from 0.32, SGLang from 0.5.23."""
    thinking: Literal["keep", "template"] = "keep"
    """With ``exact_turns``: ``keep`` leaves the thinking of earlier turns in the prompt; ``template`` sends a turn
    behind one with thinking as text, so that the template decides."""
    tokenizer: str | PathLike[str] | None = None
    """With ``exact_turns``: folder of the model's tokenizer and chat template, to tokenise new messages in this process
    and not by the server's ``/tokenize``."""
    show_added: bool = False
    """Hands on the chunks of a stream that come only because of fields that were added to the request: deltas with
    nothing in them but ids and logprobs. Without it they are recorded alone."""

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
            raise ValueError(f"Engine({self.name!r}, exact_turns=True): it is not known to take ids; {known} are.")
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
    has_tools: bool

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
    form = _Form(protocol, streamed, has_tools)
    of_engine = _ENGINES.get(engine, _no_extras)
    values = {option: getattr(options, option) for option in EXTRA_OF}
    return tuple(
        of_engine(option, value, form) for option, value in values.items() if value is not None and value is not False
    )


# vLLM. Experts and masks are switched on for the whole server: no request field asks for them. Versions of the weights
# are asked for with the ids: see profiles.py.


def _vllm_experts(option: str, value: Any, form: _Form) -> Wish:
    absent = "start vLLM with --enable-return-routed-experts"
    if form.protocol == VLLM_GENERATE or (form.protocol != RESPONSES and not form.streamed):
        return Wish(option, absent=absent)
    unstreamed = "" if form.protocol == RESPONSES else "make the call without stream, or "
    return Wish(option, obstacle=f"vLLM never has them in {form}: {unstreamed}use {path_of(VLLM_GENERATE)}")


def _vllm_prompt(option: str, value: Any, form: _Form) -> Wish:
    if form.streamed or form.protocol == RESPONSES:
        instead = (
            "use /chat/completions or /completions" if form.protocol == RESPONSES else "make the call without stream"
        )
        return Wish(option, obstacle=f"vLLM never has them in {form}: {instead}")
    name = "sampling_params.prompt_logprobs" if form.protocol == VLLM_GENERATE else "prompt_logprobs"
    return Wish(option, {name: value}, absent=_DROPPED)


def _vllm_top(option: str, value: Any, form: _Form) -> Wish:
    absent = _DROPPED
    if form.protocol == VLLM_GENERATE:
        return Wish(option, {"sampling_params.logprobs": value}, absent=absent)
    as_ids = {"return_tokens_as_token_ids": True} if value else {}
    if form.protocol == CHAT:
        return Wish(option, {"top_logprobs": value, **as_ids} if value else {}, absent=absent)
    if form.protocol == COMPLETIONS:
        return Wish(option, {"logprobs": value, **as_ids}, absent=absent)
    if form.streamed:
        # The stream has begun when the number is found too large: its connection is closed, and nobody can ask again.
        return Wish(option, obstacle=f"vLLM breaks off {form} that ask for too many, so none are: {_INSTEAD}")
    return Wish(option, {"top_logprobs": value} if value else {}, obstacle=_by_text("vLLM", form))


_INSTEAD: Final = "make the call without stream for their texts, or use /chat/completions for their ids"


def _vllm_mask(option: str, value: Any, form: _Form) -> Wish:
    if form.protocol != VLLM_GENERATE:
        return Wish(option, obstacle=f"vLLM never has it in {form}: use {path_of(VLLM_GENERATE)}")
    return Wish(option, absent="start vLLM with --return-sampling-mask --logprobs-mode processed_logprobs")


_VLLM: Final = dict(zip(EXTRA_OF, (_vllm_experts, _vllm_prompt, _vllm_top, _vllm_mask), strict=True))


# SGLang


def _sglang(option: str, value: Any, form: _Form) -> Wish:
    if value == -1:
        return Wish(option, obstacle="SGLang takes no -1 for the whole vocabulary: ask for a number of tokens")
    if form.protocol == RESPONSES:
        return Wish(option, obstacle=f"SGLang never has it in {form}: use {path_of(SGLANG_GENERATE)}")
    return _SGLANG[option](option, value, form)


def _sglang_experts(option: str, value: Any, form: _Form) -> Wish:
    return Wish(option, {"return_routed_experts": True}, absent="start SGLang with --enable-return-routed-experts")


def _sglang_prompt(option: str, value: Any, form: _Form) -> Wish:
    if form.protocol != SGLANG_GENERATE:
        return Wish(option, obstacle=f"SGLang never has them in {form}: use {path_of(SGLANG_GENERATE)}")
    asks = {"return_logprob": True, "logprob_start_len": 0, **({"top_logprobs_num": value} if value else {})}
    return Wish(option, asks, absent=_DROPPED)


def _sglang_top(option: str, value: Any, form: _Form) -> Wish:
    if form.protocol == SGLANG_GENERATE:
        asks = {"return_logprob": True, **({"top_logprobs_num": value} if value else {})}
        return Wish(option, asks, absent=_DROPPED)
    if form.protocol == COMPLETIONS:
        return Wish(option, {"logprobs": value}, obstacle=_by_text("SGLang", form))
    if form.streamed:
        return Wish(option, {"top_logprobs": value} if value else {}, obstacle=_by_text("SGLang", form))
    # The alternatives of `logprobs.content` are texts; those of `meta_info` have ids.
    asks = {"top_logprobs": value, "return_meta_info": True} if value else {}
    return Wish(option, asks, absent="SGLang has their ids from 0.5.23 on")


def _sglang_mask(option: str, value: Any, form: _Form) -> Wish:
    absent = "SGLang has it from 0.5.23 on"
    if form.protocol == SGLANG_GENERATE:
        return Wish(option, {"return_sampling_mask": True}, absent=absent)
    if form.protocol == CHAT and not form.streamed:
        return Wish(option, {"return_sampling_mask": True, "return_meta_info": True}, absent=absent)
    unstreamed = "make the call without stream, or " if form.protocol == CHAT else ""
    return Wish(option, obstacle=f"SGLang never has it in {form}: {unstreamed}use {path_of(SGLANG_GENERATE)}")


_SGLANG: Final = dict(zip(EXTRA_OF, (_sglang_experts, _sglang_prompt, _sglang_top, _sglang_mask), strict=True))


# Others


def _llama_server(option: str, value: Any, form: _Form) -> Wish:
    if option != "top_logprobs" or value == -1 or form.protocol not in (CHAT, COMPLETIONS):
        return _no_extras(option, value, form, "llama-server")
    if form.protocol == CHAT and form.streamed and form.has_tools:
        return Wish(
            option, obstacle="llama-server refuses logprobs in chat streams with tools: make the call unstreamed"
        )
    name = "top_logprobs" if form.protocol == CHAT else "logprobs"
    return Wish(option, {name: value} if value else {}, absent=_DROPPED)


def _dynamo(option: str, value: Any, form: _Form) -> Wish:
    if option == "top_logprobs" and value >= 0 and form.protocol in (CHAT, COMPLETIONS):
        name = "top_logprobs" if form.protocol == CHAT else "logprobs"
        return Wish(option, {name: value} if value else {}, obstacle=_by_text("Dynamo", form))
    instead = "set `nvext.extra_fields` in your calls, and what comes is in `Step.extra`"
    return Wish(option, obstacle=f"Dynamo's form of it, which differs from worker to worker, is not read: {instead}")


def _fireworks(option: str, value: Any, form: _Form) -> Wish:
    if option != "top_logprobs" or form.protocol not in (CHAT, COMPLETIONS):
        return _no_extras(option, value, form, "Fireworks")
    if not 0 <= value <= 5:
        return Wish(option, obstacle="Fireworks takes 0 to 5: ask for fewer")
    if form.protocol == COMPLETIONS:
        return Wish(option, {"logprobs": value} if value else {}, obstacle=_by_text("Fireworks", form))
    return Wish(option, {"top_logprobs": value} if value else {}, absent=_DROPPED)


def _together(option: str, value: Any, form: _Form) -> Wish:
    if option != "top_logprobs" or value == -1 or form.protocol not in (CHAT, COMPLETIONS):
        return _no_extras(option, value, form, "Together")
    return Wish(option, {"logprobs": value} if value else {}, obstacle=_by_text("Together", form))


def _no_extras(option: str, value: Any, form: _Form, engine: str = "this provider") -> Wish:
    return Wish(option, obstacle=f"{engine} is not known to send this in {form}: vLLM and SGLang do in some")


def _by_text(engine: str, form: _Form) -> str:
    return (
        f"{engine} names alternatives in {form} by their text alone, which may be that of several ids: they are in "
        "top_logprobs"
    )


_ENGINES: Final[dict[str, Callable[[str, Any, _Form], Wish]]] = {
    "vllm": lambda option, value, form: _VLLM[option](option, value, form),
    "sglang": _sglang,
    "llama-server": _llama_server,
    "dynamo": _dynamo,
    "fireworks": _fireworks,
    "together": _together,
}

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


__all__ = ["EXTRA_OF", "NO_TOP_K", "Engine", "Wish", "lacks_top_k", "path_of", "resolve", "value_at", "wishes_for"]
