"""The records: one sampled completion, one tool run, and what they are made of.

Missing is ``None``, never zero and never empty. Times are aware UTC datetimes, durations seconds (to the nanosecond).
What was recorded cannot be changed afterwards; what a user adds (reward, advantage, ...) can.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rollout_trace._field_docs import document_fields
from rollout_trace.data import user_values
from rollout_trace.data.lists import FrozenList, ListSpan
from rollout_trace.data.tokens import Span, as_float32, as_int32, readonly, same_array

if TYPE_CHECKING:
    from rollout_trace.data.tokens import FloatArray, IntArray

StepStatus: TypeAlias = Literal["ok", "error", "cancelled", "abandoned", "cached", "superseded", "running"]
TokenSource: TypeAlias = Literal["engine", "logprobs", "retokenized"]
LogprobsMode: TypeAlias = Literal["raw", "processed"]
CostSource: TypeAlias = Literal["override", "table", "provider", "unknown"]

CUT_OFF = frozenset({"length", "max_tokens", "max_output_tokens", "model_context_window_exceeded"})
"""Finish reasons of an answer that a limit cut off: OpenAI and the engines, Anthropic, Responses, Anthropic."""


def new_id() -> str:
    """96 random bits in hex: unique across processes, also after a fork."""
    return os.urandom(12).hex()


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorInfo:
    """What went wrong, as the exception or the server said it."""

    type: str
    """Class of the exception, or the provider's error type."""
    message: str
    code: str | int | None = None
    """The provider's code."""
    status: int | None = None
    """HTTP status of the answer that carried the error."""


def error_info(error: BaseException, *, status: int | None = None) -> ErrorInfo:
    """What an exception says of itself. One that cannot say it is named by its class alone."""
    try:
        message = str(error)
    except Exception as failure:
        message = f"no message: its __str__ raised {type(failure).__name__}"
    return ErrorInfo(type=type(error).__name__, message=message, status=status)


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class TokenIssue:
    """Why token ids or logprobs are withheld: a stable code and a sentence."""

    code: str
    message: str


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts of one call as the engine reported them. With ``n > 1`` they count all choices of the call."""

    input: int | None = None
    output: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    reasoning: int | None = None
    extra: Mapping[str, Any] | None = None
    """The provider's further counts, by its own names; nulls left out."""


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a call cost."""

    amount: float
    """In units of ``currency``."""
    currency: str = "USD"
    source: CostSource = "unknown"
    """``override``: set by the user; ``table``: from token counts and prices; ``provider``: from the answer."""


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One HTTP exchange of a call."""

    started_at: datetime | None = None
    duration: float | None = None
    """Seconds from sending to the end of the answer, or to the failure."""
    status: int | None = None
    """HTTP status; None when no answer came."""
    error: ErrorInfo | None = None
    request_id: str | None = None
    """The server's ``x-request-id``."""
    content_type: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "duration", nanoseconds(self.duration))


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool the model asked for."""

    id: str | None = None
    name: str | None = None
    arguments: str | None = None
    """The arguments exactly as the model wrote them (usually, not always, JSON)."""
    type: str = "function"
    extra: Mapping[str, Any] | None = None
    """Fields of the provider's that have no place above."""


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What the model said. An empty text beside other parts (tool calls, reasoning, ...) is None."""

    role: str = "assistant"
    content: str | Sequence[Any] | None = None
    """The text, or the provider's list of parts."""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    refusal: str | None = None
    extra: Mapping[str, Any] | None = None
    """Message fields that have no place above (audio, annotations, ...), by the provider's names; nulls left out."""


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The task a trajectory worked on."""

    id: str | None = None
    data: Any = None


@document_fields
@dataclass(slots=True, kw_only=True)
class ToolRun:
    """One execution of a tool."""

    tool_call_id: str | None = None
    name: str | None = None
    arguments: Any = None
    """As the tool was called: the raw argument string, or the decoded value."""
    result: object = None
    """What the tool gave. Pydantic objects, dataclasses, paths, enums and dates are written as what they hold."""
    error: ErrorInfo | None = None
    started_at: datetime | None = None
    duration: float | None = None
    """Seconds."""
    step_id: str | None = None
    """The step whose completion asked for it."""

    def __post_init__(self) -> None:
        self.duration = nanoseconds(self.duration)


@document_fields
@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Step:
    """One sampled completion, with everything about its call. ``n=2`` gives two steps with one ``call_id``.

    Recorded fields raise AttributeError on assignment; ``reward``, ``advantage``, ``trainable``, ``policy_version``,
    ``metadata`` and ``cost`` are the user's to set. Of these a reward or an advantage that is no number, or metadata
    that are no dict, raise TypeError, numbers that are not finite ValueError.
    """

    id: str
    call_id: str
    choice: int = 0
    """Index of the choice within its call."""
    index: int = 0
    """Position within the trajectory, in the order the calls began."""
    agent: str | None = None
    """Name of the agent that made the call."""
    protocol: str | None = None
    """Shape on the wire: ``openai.chat``, ..."""
    engine: str | None = None
    """The inference server, where it is known."""
    model: str | None = None
    """The model asked for."""
    response_model: str | None = None
    response_id: str | None = None
    messages: Sequence[Any] | None = None
    """The messages as sent, in the provider's own shape: a list that cannot be changed, ``list(...)`` makes a copy.

    Equal messages are one object: do not change them.
    """
    tools: Sequence[Any] | None = None
    """The tools as sent, a list as ``messages`` is."""
    sampling: Mapping[str, Any] | None = None
    """The other fields of the request (temperature, seed, tool_choice, ...) as sent, save ``stream`` and options."""
    completion: Completion | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    prompt_token_ids: IntArray | None = None
    """int32 [prompt length], as the engine says it read them."""
    completion_token_ids: IntArray | None = None
    """int32 [completion length], the stop token included where the engine returns it."""
    logprobs: FloatArray | None = None
    """float32 [completion length], natural logarithm, finite and <= 0. NaN only where a ``token_issue`` says that the
    engine gave none, ``logprobs_incomplete``: such a step is not trained on."""
    top_logprobs: Sequence[Sequence[Mapping[str, Any]]] | None = None
    """For each completion token the alternatives as the engine gave them (``token``, ``logprob``, ...)."""
    token_source: TokenSource | None = None
    logprobs_mode: LogprobsMode | None = None
    """``raw``: of the model at temperature 1; ``processed``: after temperature, top-p, ...; None: not known."""
    token_issue: TokenIssue | None = None
    usage: Usage | None = None
    cost: Cost | None = None
    """What the call cost. Of several choices the first has it. A cost of your own has ``source="override"``."""
    started_at: datetime | None = None
    latency: float | None = None
    """Seconds from the beginning of the call to the end of its answer."""
    time_to_first_token: float | None = None
    """Seconds from the beginning of the last attempt to the first bytes of a streamed answer."""
    attempts: tuple[Attempt, ...] = ()
    status: StepStatus = "ok"
    error: ErrorInfo | None = None
    reward: float | None = None
    """A finite number (a numpy or torch scalar too; True is 1.0), or None: not scored."""
    advantage: float | Sequence[float] | None = None
    """A finite number, or one for each completion token."""
    trainable: bool = True
    """False: no sequence takes the step's completion."""
    policy_version: str | int | None = None
    """Of the weights that sampled it."""
    metadata: dict[str, Any] | None = None
    """The user's own, and what a framework says of the call."""
    request_bytes: bytes | None = None
    """Body of the request; kept on request, and where the protocol has no decoder."""
    response_bytes: bytes | None = None
    """Body of the answer, decompressed; kept as ``request_bytes`` is."""
    _sealed: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        self.latency = nanoseconds(self.latency)
        self.time_to_first_token = nanoseconds(self.time_to_first_token)
        self._sealed = True

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _USERS_OWN and getattr(self, "_sealed", False):
            raise AttributeError(
                f"Step.{name} is a recorded fact and cannot be set; what can be: {', '.join(sorted(_USERS_OWN))}. "
                f"For a changed copy use dataclasses.replace(step, {name}=...)."
            )
        check = _CHECKS.get(name)
        if check is not None and value is not None:
            value = check(value, f"Step.{name}")
        object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        # Short: messages and ids of a long agent fill pages, and asyncio's debug mode prints what a task returns.
        held = {"prompt": self.prompt_token_ids, "completion": self.completion_token_ids}
        counts = "".join(f", {name}={'unknown' if ids is None else len(ids)} ids" for name, ids in held.items())
        return f"Step({self.id!r}, {self.status}, protocol={self.protocol!r}, model={self.model!r}{counts})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Step):
            return NotImplemented
        return all(same_array(getattr(self, name), getattr(other, name)) for name in STEP_FIELDS)

    __hash__ = None  # type: ignore[assignment]

    def __getstate__(self) -> dict[str, Any]:
        # What steps share is shared in a pickle too: a whole prompt in each would grow with the square of the turns.
        held = {name: get(self, Step) for name, get, _ in _HELD}
        return {name: held[name] for name, _, usual in _HELD if held[name] is not usual}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Arrays and lists come out of a pickle, or a deep copy, as ones that can be changed.
        frozen = {name: readonly(state[name]) for name in _ARRAYS & state.keys() if hasattr(state[name], "flags")}
        lists = {name: FrozenList(state[name]) for name in _LISTS & state.keys() if type(state[name]) is list}
        _fill(self, {**state, **frozen, **lists})


_USERS_OWN = frozenset({"reward", "advantage", "trainable", "policy_version", "metadata", "cost"})
_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "reward": user_values.finite_number,
    "advantage": user_values.advantage,
    "metadata": user_values.metadata,
}
STEP_FIELDS = tuple(item.name for item in fields(Step) if item.name != "_sealed")


def nanoseconds(seconds: float | None) -> float | None:
    """Rounds a duration to the nanosecond, so that a file holding milliseconds gives the same float back."""
    return None if seconds is None else round(seconds, 9)


def _shared_field(name: str, convert: Callable[[Any, str], Any]) -> None:
    """Lets a slot of Step hold a span of something shared, which becomes an array or a list when it is read."""
    slot = Step.__dict__[name]

    def get(step: Step) -> Any:
        value = slot.__get__(step, Step)
        return value.get() if isinstance(value, (Span, ListSpan)) else value

    def put(step: Step, value: Any) -> None:
        slot.__set__(step, value if value is None or isinstance(value, (Span, ListSpan)) else convert(value, name))

    setattr(Step, name, property(get, put))
    _SLOTS[name] = slot


_SLOTS: dict[str, Any] = {}
_shared_field("prompt_token_ids", as_int32)
_shared_field("completion_token_ids", as_int32)
_shared_field("logprobs", as_float32)
_shared_field("messages", lambda value, _: FrozenList(value) if type(value) is list else value)
_shared_field("tools", lambda value, _: FrozenList(value) if type(value) is list else value)


def shared(step: Step, name: str) -> Any:
    """What the step's slot really holds: a span, an array or a list, or None. For writers, which store once."""
    return _SLOTS[name].__get__(step, Step)


_SET = {name: (_SLOTS.get(name) or Step.__dict__[name]).__set__ for name in (*STEP_FIELDS, "_sealed")}
_DEFAULTS: list[tuple[Any, Any]] = [(_SET[item.name], item.default) for item in fields(Step) if item.name != "_sealed"]
_ARRAYS = frozenset({"prompt_token_ids", "completion_token_ids", "logprobs"})
_LISTS = frozenset({"messages", "tools", "advantage"})
_HELD = [
    (item.name, (_SLOTS.get(item.name) or Step.__dict__[item.name]).__get__, item.default)
    for item in fields(Step)
    if item.name != "_sealed"
]


def new_step(facts: dict[str, Any]) -> Step:
    """A step with these fields, as they are: no conversion, no check. For the recorder and the reader: much faster.

    Spans, read-only arrays of the right dtype and rounded durations are what it must be given.
    """
    step = object.__new__(Step)
    _fill(step, facts)
    return step


def _fill(step: Step, facts: dict[str, Any]) -> None:
    for put, default in _DEFAULTS:
        put(step, default)
    for name, value in facts.items():
        _SET[name](step, value)
    _SET["_sealed"](step, True)


def amend(step: Step, **facts: Any) -> None:
    """Sets recorded fields. For the recorder alone, before a step is handed out."""
    for name, value in facts.items():
        object.__setattr__(step, name, value)
