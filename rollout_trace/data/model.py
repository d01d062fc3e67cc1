"""The records: one sampled completion (``Step``), one tool run (``ToolRun``), and the types of their fields.

Missing is ``None``, never zero and never empty. Times are aware UTC datetimes; durations are in seconds, rounded to the
nanosecond. Recorded fields of a step cannot be changed; those that users set (reward, advantage, ...) can.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass, replace
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast

from rollout_trace import credentials
from rollout_trace._field_docs import document_fields
from rollout_trace._lazy import registered
from rollout_trace.data import user_values
from rollout_trace.data.exact_turn import ExactTurn
from rollout_trace.data.extras import ExtraIssue, PolicySpan, SamplingMask, TopTokens, as_experts, as_policy_spans
from rollout_trace.data.lists import FrozenList, as_token_texts
from rollout_trace.data.tokens import Stored, as_float32, as_int32, readonly, same_array
from rollout_trace.data.trainer_tokens import TRAINER_CHECKS, TRAINER_VALUES, TrainerTokens

if TYPE_CHECKING:
    from rollout_trace.data.extras import ExpertArray
    from rollout_trace.data.tokens import FloatArray, IntArray

T = TypeVar("T")

StepStatus: TypeAlias = Literal["ok", "error", "cancelled", "abandoned", "cached", "superseded", "running"]
TokenSource: TypeAlias = Literal["engine", "logprobs", "retokenized"]
LogprobsMode: TypeAlias = Literal["raw", "processed", "constrained"]
CostSource: TypeAlias = Literal["override", "table", "provider", "unknown"]

CUT_OFF = frozenset({"length", "max_tokens", "max_output_tokens", "model_context_window_exceeded", "MAX_TOKENS"})
"""Finish reasons of completions cut off by a limit: OpenAI and the engines, Anthropic, Responses, Anthropic, Google."""


_ids: list[str] = []
"""Ids that nobody has yet. Asked of the system many at a time: each time another thread may take the interpreter."""
_ID = 12
_IDS = 64

if hasattr(os, "register_at_fork"):
    # They are the original process's.
    os.register_at_fork(after_in_child=_ids.clear)


def new_id() -> str:
    """A random id of 96 bits, in hex."""
    while True:
        try:
            return _ids.pop()
        except IndexError:
            # From the system: the state of `random` is copied by a fork, and the user may seed it.
            data = os.urandom(_ID * _IDS).hex()
            _ids.extend([data[start : start + 2 * _ID] for start in range(0, len(data), 2 * _ID)])


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorInfo:
    """An error as reported by the exception or the server. API keys of this process's clients are removed from it."""

    type: str
    """Class of the exception, or the provider's error type."""
    message: str
    """Text of the exception, or the provider's message."""
    code: str | int | None = None
    """The provider's error code."""
    status: int | None = None
    """HTTP status of the answer with the error."""

    def __post_init__(self) -> None:
        # Errors often repeat what they refuse, and are shown outside of steps, too.
        for name in ("type", "message", "code") if credentials.any_known() else ():
            value = getattr(self, name)
            if isinstance(value, str) and (clean := credentials.cut(value)) is not value:
                object.__setattr__(self, name, clean)


def error_info(error: BaseException, *, status: int | None = None) -> ErrorInfo:
    """Class and message of an exception. One whose ``__str__`` raises gets a message that names that failure."""
    try:
        message = str(error)
    except Exception as failure:
        message = f"no message: its __str__ raised {type(failure).__name__}"
    return ErrorInfo(type=type(error).__name__, message=message, status=status)


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class TokenIssue:
    """Why token ids or logprobs of a step are missing, incomplete or withheld: a stable code and a sentence."""

    code: str
    """A stable code; docs/checks.md lists all of them."""
    message: str
    """A sentence with what was found."""


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts of one call, as reported by the engine. With ``n > 1`` they include all choices of the call."""

    input: int | None = None
    """Tokens of the whole prompt, including those read from or written to a cache."""
    output: int | None = None
    """Sampled tokens."""
    cache_read: int | None = None
    """Part of ``input`` that was read from the provider's cache."""
    cache_write: int | None = None
    """Part of ``input`` that was written to the provider's cache."""
    reasoning: int | None = None
    """Reasoning tokens, if the provider counts them."""
    extra: Mapping[str, Any] | None = None
    """Other counts, under the provider's own names; nulls are left out."""


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of a call."""

    amount: float
    """Amount in units of ``currency``."""
    currency: str = "USD"
    """Currency code, such as ``USD``."""
    source: CostSource = "unknown"
    """``override``: set by the user; ``table``: from token counts and prices; ``provider``: from the answer."""


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One HTTP exchange of a call."""

    started_at: datetime | None = None
    """When the request was sent."""
    duration: float | None = None
    """Seconds from sending the request to the end of the answer or to the failure."""
    status: int | None = None
    """HTTP status; None if no answer came."""
    error: ErrorInfo | None = None
    """Why the exchange failed; None if it was answered without an error."""
    request_id: str | None = None
    """The server's ``x-request-id``."""
    content_type: str | None = None
    """``content-type`` of the answer."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "duration", nanoseconds(self.duration))


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool call in a completion."""

    id: str | None = None
    """The provider's id of the tool call; the tool's result refers to it."""
    name: str | None = None
    """Name of the tool."""
    arguments: str | None = None
    """The raw argument string, exactly as sampled. Usually JSON, but not validated."""
    type: str = "function"
    """The provider's type of tool."""
    extra: Mapping[str, Any] | None = None
    """The provider's other fields, under its own names."""


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The message that the model sampled. An empty text next to other parts (tool calls, reasoning, ...) is None."""

    role: str = "assistant"
    """Role of the message."""
    content: str | Sequence[Any] | None = None
    """The text, or the provider's list of content parts."""
    reasoning: str | None = None
    """Text of the reasoning, if the provider sends it."""
    tool_calls: tuple[ToolCall, ...] = ()
    """The tool calls, in the order in which they were sampled."""
    refusal: str | None = None
    """The model's refusal text, if the provider sends it separately from the content."""
    extra: Mapping[str, Any] | None = None
    """Other fields of the message (audio, annotations, ...), under the provider's names; nulls are left out."""


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The task a trajectory worked on."""

    id: str | None = None
    """Id of the task."""
    data: Any = None
    """Data of the task: question, answer, ..."""


@document_fields
@dataclass(slots=True, kw_only=True)
class ToolRun:
    """One execution of a tool."""

    tool_call_id: str | None = None
    """Id of the ``ToolCall`` that it answers."""
    name: str | None = None
    """Name of the tool."""
    arguments: Any = None
    """Arguments of the execution: the raw argument string or the decoded value."""
    result: object = None
    """The tool's result. Pydantic objects, dataclasses, paths, enums and dates are written as the values they hold."""
    error: ErrorInfo | None = None
    """The exception that the tool raised."""
    started_at: datetime | None = None
    """When the tool was called."""
    duration: float | None = None
    """Duration in seconds."""
    step_id: str | None = None
    """The step whose completion contains the tool call."""

    def __post_init__(self) -> None:
        self.duration = nanoseconds(self.duration)


class _TrainerValue:
    """An array of ``Step.trainer`` as an attribute of the step: float32 [completion length], or None."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, step: Step | None, owner: type) -> FloatArray | None:
        found: FloatArray | None = None if step is None or step.trainer is None else getattr(step.trainer, self._name)
        return found

    def __set__(self, step: Step, value: Any) -> None:
        ids = step.completion_token_ids
        if value is not None and (ids is None or len(ids) != len(value)):
            length = "no completion ids" if ids is None else f"{len(ids)} completion ids"
            raise ValueError(f"Step.{self._name} has {len(value)} numbers, and step {step.id} has {length}.")
        object.__setattr__(step, "trainer", replace(step.trainer or TrainerTokens(), **{self._name: value}))


@document_fields
@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Step:
    """A sampled completion and its call. ``n=2`` gives two steps with the same ``call_id``.

    Assigning to a recorded field raises AttributeError. ``reward``, ``advantage``, ``trainable``, ``policy_version``,
    ``metadata``, ``cost`` and a trainer's arrays (``trainer_logprobs``, ...) can be set. A reward or advantage that is
    not a number, or metadata that is not a dict, raises TypeError; a number that is not finite raises ValueError.
    """

    id: str
    """Unique id of the step."""
    call_id: str
    """Id of the call, shared by all its steps."""
    choice: int = 0
    """Index of the choice within its call."""
    index: int = 0
    """Position within the trajectory, in the order in which calls began."""
    agent: str | None = None
    """Name of the agent that made the call."""
    protocol: str | None = None
    """Protocol of the request: ``openai.chat``, ``anthropic.messages``, ..."""
    engine: str | None = None
    """The inference server; None if unknown."""
    model: str | None = None
    """The model named in the request."""
    response_model: str | None = None
    """The model named in the answer."""
    response_id: str | None = None
    """The provider's id of the answer."""
    messages: Sequence[Any] | None = None
    """The messages as sent, in the provider's format. The list cannot be changed; ``list(...)`` makes a copy.

    Steps share equal messages as one object: do not change them.
    """
    tools: Sequence[Any] | None = None
    """The tools as sent; like ``messages``, a list that cannot be changed."""
    sampling: Mapping[str, Any] | None = None
    """Other fields of the request as sent (temperature, seed, tool_choice, ...), without ``stream`` and its options."""
    completion: Completion | None = None
    """The sampled message; None if there was none."""
    finish_reason: str | None = None
    """Why the sampling ended, in the provider's words: ``stop``, ``length``, ``tool_calls``, ``end_turn``, ..."""
    stop_reason: str | int | None = None
    """The stop text or token id that ended the sampling, if the provider sends it."""
    prompt_token_ids: IntArray | None = None
    """int32 [prompt length], as reported by the engine."""
    completion_token_ids: IntArray | None = None
    """int32 [completion length], including the stop token if the engine returns it."""
    logprobs: FloatArray | None = None
    """float32 [completion length], natural logarithm, finite and <= 0. NaN where the engine returned none for a token;
    the ``token_issue`` is then ``logprobs_incomplete``, and the step is left out of training."""
    top_logprobs: Sequence[Sequence[Mapping[str, Any]]] | None = None
    """For each completion token, the alternatives as returned by the engine (``token``, ``logprob``, ...). Stored as
    JSON: each access builds new lists. If they have ids, ``top_tokens`` has them as arrays."""
    token_texts: Sequence[str] | None = None
    """The text of each completion token, if the engine sent texts with the logprobs. Joined, they are the sampled text,
    including special tokens. A character made of several tokens is in the last of them, and the others are empty; bytes
    that are not UTF-8 become U+FFFD. Stored packed: each access builds a new list."""
    token_source: TokenSource | None = None
    """``engine``: the ids come from dedicated fields of the answer; ``logprobs``: from the token names in the logprobs;
    ``retokenized``: computed from the text on request. None without ids."""
    logprobs_mode: LogprobsMode | None = None
    """Distribution of the logprobs. ``raw``: the model's at temperature 1; ``processed``: after temperature, top-p,
    ...; ``constrained``: after a grammar or a list of allowed tokens as well; None: unknown."""
    token_issue: TokenIssue | None = None
    """Why ids or logprobs are missing or withheld; None if nothing is wrong."""
    usage: Usage | None = None
    """Token counts of the call, the same for each of its choices."""
    cost: Cost | None = None
    """Cost of the call, on its first choice only. If you set it yourself, use ``source="override"``."""
    started_at: datetime | None = None
    """When the call began."""
    latency: float | None = None
    """Seconds from the start of the call to the end of its answer."""
    time_to_first_token: float | None = None
    """Seconds from the start of the last attempt to the first bytes of a streamed answer."""
    attempts: tuple[Attempt, ...] = ()
    """The HTTP exchanges of the call, in order."""
    status: StepStatus = "ok"
    """``ok``, ``error``, ``cancelled``, ``abandoned`` (the stream was closed early), ``cached`` (a framework answered
    without a call), ``superseded`` (sampled, then discarded by a framework) or ``running``."""
    error: ErrorInfo | None = None
    """Why the call failed."""
    reward: float | None = None
    """A finite number (numpy and torch scalars too; True is 1.0), or None if not scored."""
    advantage: float | Sequence[float] | None = None
    """A finite number, or a list with one number for each completion token."""
    trainable: bool = True
    """If False, no training sequence uses the step's completion."""
    policy_version: str | int | None = None
    """Version of the weights that sampled the completion. Several (see ``policy_spans``) are joined by commas."""
    metadata: dict[str, Any] | None = None
    """Metadata set by the user, and a framework's metadata of the call."""
    request_bytes: bytes | None = None
    """Body of the request. Kept only on request, or if the protocol has no decoder."""
    response_bytes: bytes | None = None
    """Body of the answer, decompressed. Kept under the same conditions as ``request_bytes``."""
    prompt_logprobs: FloatArray | None = None
    """float32 [prompt length]: logprob of each prompt token given the tokens before it, at temperature 1. NaN where the
    engine sends none, which always includes the first token."""
    prompt_top_tokens: TopTokens | None = None
    """The likeliest tokens at each position of the prompt: [prompt length, k]. The first position has none."""
    top_tokens: TopTokens | None = None
    """The likeliest tokens at each position of the completion: [completion length, k]. None if the engine sends only
    their texts (see ``top_logprobs``), because different ids may share a text."""
    sampling_mask: SamplingMask | None = None
    """The ids that could be sampled at each position of the completion: [completion length], ragged."""
    routed_experts: ExpertArray | None = None
    """uint8, uint16 or int32 [positions, layers, k]: ids of the experts that each layer chose for each token of prompt
    and completion. There are ``prompt + completion - 1`` rows, since the last sampled token was not run through the
    model; fewer if the engine was asked to leave out the first tokens (``routed_experts_prompt_start``). In vLLM's
    arrays, a layer without experts is a row of zeros."""
    policy_spans: tuple[PolicySpan, ...] | None = None
    """Which version of the weights sampled which positions of the completion: contiguous, from 0 to its length."""
    extra: Mapping[str, Any] | None = None
    """All other fields of the answer, under the provider's names: ``system_fingerprint``, ``metrics``, ... They are the
    fields of the choice and of the answer around it; if both have a name, the choice's is kept. Nulls are left out."""
    extra_issues: tuple[ExtraIssue, ...] = ()
    """Why extras (``routed_experts``, ...) were withheld, or are missing although they were requested."""
    exact_turn: ExactTurn | None = None
    """With ``exact_turns``: whether the prompt was sent as ids or as text, and why; None for the first turn."""
    trainer: TrainerTokens | None = None
    """What a trainer computed for the completion's tokens. Each array is also an attribute of the step that can be set:
    ``trainer_logprobs``, ``entropy``, ``reference_logprobs``, ``loss_weights``."""
    _sealed: bool = field(default=False, init=False, repr=False)

    trainer_logprobs = _TrainerValue()
    entropy = _TrainerValue()
    reference_logprobs = _TrainerValue()
    loss_weights = _TrainerValue()

    def __post_init__(self) -> None:
        self.latency = nanoseconds(self.latency)
        self.time_to_first_token = nanoseconds(self.time_to_first_token)
        self._sealed = True

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _USER_FIELDS and getattr(self, "_sealed", False):
            raise AttributeError(
                f"Step.{name} is a recorded fact and cannot be set. You can set: {', '.join(sorted(_USER_FIELDS))}. "
                f"For a changed copy use dataclasses.replace(step, {name}=...)."
            )
        check = _CHECKS.get(name)
        if check is not None and value is not None:
            value = check(value, f"Step.{name}")
        object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        # Short: messages and ids would fill pages, and asyncio's debug mode prints what a task returns.
        ids_of = {"prompt": self.prompt_token_ids, "completion": self.completion_token_ids}
        counts = "".join(f", {name}={'unknown' if ids is None else len(ids)} ids" for name, ids in ids_of.items())
        return f"Step({self.id!r}, {self.status}, protocol={self.protocol!r}, model={self.model!r}{counts})"

    def _repr_html_(self) -> str:
        """The picture of the step in a notebook."""
        html: str = registered("step_html")(self)
        return html

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Step):
            return NotImplemented
        return all(same_array(getattr(self, name), getattr(other, name)) for name in STEP_FIELDS)

    __hash__ = None  # type: ignore[assignment]

    def __getstate__(self) -> dict[str, Any]:
        # Spans, not arrays, so that a pickle shares segments: whole prompts would grow with the square of the turns.
        stored = {name: get(self, Step) for name, get, _ in _GETTERS}
        return {name: stored[name] for name, _, default in _GETTERS if stored[name] is not default}

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.__getstate__(),)


_USER_FIELDS = frozenset({"reward", "advantage", "trainable", "policy_version", "metadata", "cost", *TRAINER_VALUES})
_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "reward": user_values.finite_number,
    "advantage": user_values.advantage,
    "metadata": user_values.metadata,
    "policy_spans": as_policy_spans,
    **TRAINER_CHECKS,
}
STEP_FIELDS = tuple(item.name for item in fields(Step) if item.name != "_sealed")


def nanoseconds(seconds: float | None) -> float | None:
    """Rounds seconds to the nanosecond, so that a file, which holds milliseconds, restores the same float."""
    return None if seconds is None else round(seconds, 9)


STORED = "_stored_"
"""Before the name of a field: the attribute of a step that is the field's stored form, as ``shared`` returns it. For
writers that read many at once, with one ``attrgetter``."""


def _made_when_read(name: str, slot: Any, convert: Callable[[Any, str], Any]) -> property:
    """A property in the place of a field of Step: its slot may hold a stored form, which is read through ``get()``."""

    def get(step: Step) -> Any:
        value = slot.__get__(step, Step)
        return value.get() if isinstance(value, Stored) else value

    def put(step: Step, value: Any) -> None:
        slot.__set__(step, value if value is None or isinstance(value, Stored) else convert(value, name))

    return property(get, put)


_CONVERTERS: dict[str, Callable[[Any, str], Any]] = {
    **dict.fromkeys(("prompt_token_ids", "completion_token_ids"), as_int32),
    **dict.fromkeys(("logprobs", "prompt_logprobs"), as_float32),
    **dict.fromkeys(("messages", "tools"), lambda value, _: FrozenList(value) if type(value) is list else value),
    **dict.fromkeys(("top_logprobs", "prompt_top_tokens"), lambda value, _: value),
    "token_texts": as_token_texts,
    "routed_experts": as_experts,
}
"""The fields with stored forms, and what becomes of other values that are set."""
_SLOTS: dict[str, Any] = {name: Step.__dict__[name] for name in STEP_FIELDS}
for _name, _convert in _CONVERTERS.items():
    # After the class is made: `dataclass(slots=True)` would take a property in its body for the default.
    setattr(Step, _name, _made_when_read(_name, _SLOTS[_name], _convert))
    setattr(Step, STORED + _name, _SLOTS[_name])


def shared(step: Step, name: str) -> Any:
    """The stored form of a field: a span, JSON, an array, a list or None. For writers that store shared values once."""
    return _SLOTS[name].__get__(step, Step)


stored_ids = attrgetter(STORED + "prompt_token_ids", STORED + "completion_token_ids")
"""The stored forms of a step's prompt and completion ids."""
_ARRAYS = frozenset({"prompt_token_ids", "completion_token_ids", "logprobs", "prompt_logprobs", "routed_experts"})
_LISTS = frozenset({"messages", "tools", "advantage"})
_GETTERS = [(item.name, _SLOTS[item.name].__get__, item.default) for item in fields(Step) if item.name != "_sealed"]


def maker(kind: type[T], *first: str, **defaults: Any) -> Callable[..., T]:
    """Makes records of a dataclass with slots without its conversions and checks, several times as fast.

    Setting the fields of a frozen class, or of one with ``__setattr__``, costs a call for each. An object of a class
    that has the same slots and neither, becomes one of this class.

    Args:
        kind: the dataclass.
        *first: fields that are given by their place, in this order; all others by name.
        **defaults: in place of those of the class.
    """

    def become(made: Any) -> None:
        made.__class__ = kind

    known = {item.name: item for item in fields(kind)}  # type: ignore[arg-type]
    items = []
    for name in dict.fromkeys((*first, *known)):
        default, factory = defaults.get(name, known[name].default), known[name].default_factory
        items.append((name, Any, field(default=default, default_factory=factory, kw_only=name not in first)))
    bases, namespace = kind.__bases__, {"__post_init__": become}
    made_of = make_dataclass(kind.__name__, items, bases=bases, namespace=namespace, slots=True, eq=False, repr=False)
    return cast("Callable[..., T]", made_of)


new_completion = maker(Completion)
new_usage = maker(Usage)
new_exact_turn = maker(ExactTurn)
new_attempt = maker(Attempt)
"""``duration`` must be rounded."""
_new_step = maker(Step, _sealed=True)


def new_step(values: dict[str, Any]) -> Step:
    """A step with these fields, without conversion or check; much faster. For the recorder and the reader.

    Token ids and logprobs must be spans or read-only arrays of the right dtype; durations must be rounded.
    """
    return _new_step(**values)


def _restored(state: dict[str, Any]) -> Step:
    # A pickle or a deep copy restores arrays and lists as ones that can be changed.
    arrays = {name: readonly(state[name]) for name in _ARRAYS & state.keys() if hasattr(state[name], "flags")}
    lists = {name: FrozenList(state[name]) for name in _LISTS & state.keys() if type(state[name]) is list}
    return _new_step(**{**state, **arrays, **lists})


def amend(step: Step, **values: Any) -> None:
    """Sets recorded fields, which assignment refuses. Only for the recorder and ``retokenize``."""
    for name, value in values.items():
        object.__setattr__(step, name, value)
