"""Steps of calls whose bytes were not seen, made from the fields that a framework's hook reported.

Nothing about those fields is certain. One of the wrong type, or that no step has, is left out and named in the step's
``token_issue``, of an extra in its ``extra_issues``; ids, logprobs and extras pass the same checks as those from the
wire. Nothing raises: a bad field must not cost the other steps of the trajectory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import msgspec

from rollout_trace import credentials
from rollout_trace.data.exact_turn import ExactTurn, Reason
from rollout_trace.data.extras import EXTRAS, ExtraIssue, PolicySpan, SamplingMask, TopTokens, as_experts
from rollout_trace.data.lists import as_token_texts
from rollout_trace.data.model import (
    STEP_FIELDS,
    Attempt,
    Completion,
    Cost,
    ErrorInfo,
    LogprobsMode,
    Step,
    StepStatus,
    TokenIssue,
    TokenSource,
    ToolCall,
    Usage,
    amend,
)
from rollout_trace.data.redact import redacted_steps
from rollout_trace.data.tokens import as_float32, as_int32, readonly
from rollout_trace.wire import align
from rollout_trace.wire.align import FoundExtras, settle
from rollout_trace.wire.extras import checked_logprobs, returns_issue
from rollout_trace.wire.facts import ChoiceFacts

if TYPE_CHECKING:
    from rollout_trace.data.extras import ExpertArray

_SHOWN = 80
"""Most characters of a wrong value that a message shows."""
_BESIDE_IDS = frozenset({*EXTRAS, "token_texts", "extra", "extra_issues"})
"""Fields of which a wrong one is no fault of the ids."""


def step_of(recorded: Mapping[str, Any], reported: Iterable[Mapping[str, Any]]) -> Step:
    """A step with the recorder's own fields and those a framework reported, which are checked.

    A reported field replaces a recorded one; of several, the last one counts.
    """
    fields, problem = dict(recorded), None
    extra_issues: dict[str, ExtraIssue] = {}
    # What is no mapping is no field of a step: it is left out, and the issue names it so.
    items = [(one if isinstance(one, Mapping) else {"an answer": one}).items() for one in reported]
    for name, value in chain(*items):
        try:
            if value is not None and name not in _TYPES:
                raise ValueError(f"a step has no such field; got {_brief(value)}.")
            if value is not None:
                fields[name] = _as(_TYPES[name], value, name)
        except Exception as error:
            # Without an earlier report of the field either: the last one counts, and that is wrong.
            fields.pop(name, None)
            if name in recorded:
                fields[name] = recorded[name]
            if name in _BESIDE_IDS:
                message = f"of what the framework gave, {name} was left out: {error}"
                extra_issues[name] = ExtraIssue(field=name, code="malformed", message=message)
            else:
                problem = problem or f"{_brief(name)} was left out: {error}"
    issue = _withhold_unaligned(fields)
    texts_issue = _texts_issue(fields)
    if texts_issue is not None:
        extra_issues["token_texts"] = texts_issue
    _withhold_extras(fields, [one for name, one in extra_issues.items() if name not in fields])
    if problem is not None:
        issue = TokenIssue(code="response_malformed", message=f"of what the framework gave, {problem}")
    if issue is not None:
        fields["token_issue"] = issue
    metadata = fields.pop("metadata", None)
    step = Step(**fields)
    # Past the checks of the constructor: metadata with two keys that are one in JSON must not cost the step.
    amend(step, metadata=metadata)
    return redacted_steps([step], None)[0] if credentials.any_known() else step


def _withhold_unaligned(fields: dict[str, Any]) -> TokenIssue | None:
    """Removes ids and logprobs that fail the checks for those from the wire; returns the issue, if any."""
    ids, logprobs = fields.get("completion_token_ids"), fields.get("logprobs")
    if logprobs is None:
        return None
    top = fields.get("top_logprobs")
    choice = ChoiceFacts(completion_token_ids=ids, logprobs=logprobs, top_logprobs=top)
    align.check([choice], None)
    fields["completion_token_ids"], fields["logprobs"] = choice.completion_token_ids, choice.logprobs
    fields["top_logprobs"] = choice.top_logprobs
    return choice.issue


def _texts_issue(fields: dict[str, Any]) -> ExtraIssue | None:
    """Removes texts of another number than there are tokens; returns the issue, if any."""
    texts, logprobs = fields.get("token_texts"), fields.get("logprobs")
    tokens = logprobs if fields.get("completion_token_ids") is None else fields["completion_token_ids"]
    if texts is None or (tokens is not None and len(texts) == len(tokens)):
        return None
    del fields["token_texts"]
    if tokens is None:
        message = f"{len(texts)} texts came without the ids or logprobs of their tokens."
        return ExtraIssue(field="token_texts", code="ids_missing", message=message)
    message = f"{len(texts)} texts came for {len(tokens)} tokens."
    return ExtraIssue(field="token_texts", code="not_aligned", message=message)


_prompt_logprobs = returns_issue("prompt_logprobs")(lambda values: checked_logprobs(as_float32(values), "prompt"))


def _withhold_extras(fields: dict[str, Any], issues: Sequence[ExtraIssue]) -> None:
    """Removes extras that do not fit the ids; adds the issues of these, and those given, to ``extra_issues``."""
    prompt, completion = fields.get("prompt_token_ids"), fields.get("completion_token_ids")
    choice = ChoiceFacts(prompt_token_ids=prompt, completion_token_ids=completion)
    found = FoundExtras(**{name: fields.pop(name, None) for name in EXTRAS})
    if isinstance(found.prompt_logprobs, Sized):
        found.prompt_logprobs = _prompt_logprobs(found.prompt_logprobs)
    if isinstance(found.routed_experts, Sized) and prompt is not None and completion is not None:
        # How many tokens were left out at the beginning is not known: as many as have no row.
        found.experts_start = max(len(prompt) + len(completion) - 1 - len(found.routed_experts), 0)
    settle(choice, found)
    fields.update({name: value for name in EXTRAS if (value := getattr(choice, name)) is not None})
    if issues or choice.extra_issues:
        fields["extra_issues"] = (*fields.get("extra_issues", ()), *issues, *choice.extra_issues)


def _refuse(expected: str, value: Any) -> Any:
    raise ValueError(f"expected {expected}, got {_brief(value)}.")


def _brief(value: Any) -> str:
    text = credentials.cut(value if isinstance(value, str) else repr(value))
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


_Check = Callable[[Any, str], Any]


def _text(value: Any, name: str) -> str:
    if value is None:
        _refuse("a text", value)
    # Files hold it as text: a value whose __str__ raises costs this field here, later the whole trajectory.
    return str.__str__(value) if isinstance(value, str) else str(value)


def _whole(value: Any, name: str) -> int:
    number = int(value)
    if number != value or number < 0 or isinstance(value, bool):
        _refuse("a whole number from 0 on", value)
    return number


def _number(value: Any, name: str) -> float:
    number = float(value)
    return number if math.isfinite(number) else _refuse("a finite number", value)


def _list(value: Any, name: str) -> Any:
    is_list = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    return value if is_list else _refuse("a list", value)


def _logprobs(value: Any, name: str) -> list[float]:
    values = value.tolist() if hasattr(value, "tolist") else value
    return [math.nan if one is None else float(one) for one in _list(values, name)]


def _advantage(value: Any, name: str) -> Any:
    values = value.tolist() if hasattr(value, "tolist") else value
    return [_number(one, name) for one in values] if isinstance(values, (list, tuple)) else _number(values, name)


def _mapping(value: Any, name: str) -> dict[Any, Any]:
    return dict(value) if isinstance(value, Mapping) else _refuse("a mapping", value)


def _of(*kinds: type) -> _Check:
    expected = " or ".join(kind.__name__ for kind in kinds)
    return lambda value, name: value if isinstance(value, kinds) else _refuse(expected, value)


def _converted(kind: Any) -> _Check:
    """A check by msgspec, whose errors name what was expected, and where in the value."""

    def check(value: Any, name: str) -> Any:
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            is_word = get_origin(kind) is Literal
            expected = f"expected one of {', '.join(get_args(kind))}" if is_word else str(error)
            raise ValueError(f"{expected}, got {_brief(value)}.") from None

    return check


def _record(kind: type[Any]) -> _Check:
    """A check of one of the library's own records, and of each of its fields."""

    def check(value: Any, name: str) -> Any:
        _of(kind)(value, name)
        found = {}
        for item in dataclass_fields(kind):
            try:
                found[item.name] = _as(str(item.type), getattr(value, item.name), item.name)
            except Exception as error:
                raise ValueError(f"its {item.name}: {error}") from None
        return replace(value, **found)

    return check


def _each(kind: type[Any]) -> _Check:
    one = _record(kind)
    return lambda value, name: tuple(one(item, name) for item in _of(tuple, list)(value, name))


def _top_tokens(value: Any, name: str) -> TopTokens:
    import numpy as np

    if not isinstance(value, TopTokens):
        return _refuse("TopTokens", value)  # type: ignore[no-any-return]
    ids, logprobs = np.asarray(value.ids), np.asarray(value.logprobs)
    is_right = ids.ndim == 2 and ids.shape == logprobs.shape and ids.dtype.kind in "iu" and logprobs.dtype.kind in "iuf"
    if not is_right or (ids.size and not -1 <= int(ids.min()) <= int(ids.max()) <= 0x7FFFFFFF):
        _refuse("ids from -1 to 2147483647, and logprobs, of one shape [positions, k]", value)
    return TopTokens(readonly(ids.astype(np.int32)), as_float32(logprobs.ravel()).reshape(ids.shape))


def _experts(value: Any, name: str) -> ExpertArray:
    experts = as_experts(value, name)
    return _refuse("experts from 0 on", value) if experts.size and experts.min() < 0 else experts


def _sampling_mask(value: Any, name: str) -> SamplingMask:
    if not isinstance(value, SamplingMask):
        return _refuse("a SamplingMask", value)  # type: ignore[no-any-return]
    ids, counts = as_int32(value.ids, f"{name}.ids"), as_int32(value.counts, f"{name}.counts")
    logprobs = None if value.logprobs is None else as_float32(value.logprobs, f"{name}.logprobs")
    if len(ids) != int(counts.sum()) or (logprobs is not None and len(logprobs) != len(ids)):
        _refuse("as many ids, and logprobs, as the sum of counts", value)
    return SamplingMask(ids, counts, logprobs)


_CHECKS: dict[str, _Check] = {
    "str": _text,
    "int": _whole,
    "float": _number,
    "bool": _converted(bool),
    "bytes": _of(bytes),
    "datetime": _of(datetime),
    "str | int": _of(str, int),
    "str | Sequence[Any]": _of(str, list, tuple),
    "Sequence[Any]": _list,
    "Sequence[str]": as_token_texts,
    "Sequence[Sequence[Mapping[str, Any]]]": _list,
    "Mapping[str, Any]": _mapping,
    "dict[str, Any]": _mapping,
    "IntArray": as_int32,
    "FloatArray": _logprobs,
    "float | Sequence[float]": _advantage,
    "Completion": _record(Completion),
    "tuple[ToolCall, ...]": _each(ToolCall),
    "Usage": _record(Usage),
    "Cost": _record(Cost),
    "CostSource": _text,
    "tuple[Attempt, ...]": _each(Attempt),
    "ErrorInfo": _record(ErrorInfo),
    "TopTokens": _top_tokens,
    "SamplingMask": _sampling_mask,
    "ExpertArray": _experts,
    "tuple[PolicySpan, ...]": _converted(tuple[PolicySpan, ...]),
    "tuple[ExtraIssue, ...]": _each(ExtraIssue),
    "TokenIssue": _record(TokenIssue),
    "ExactTurn": _record(ExactTurn),
    "Reason": _converted(Reason),
    "TokenSource": _converted(TokenSource),
    "LogprobsMode": _converted(LogprobsMode),
    "StepStatus": _converted(StepStatus),
}
"""By the annotation of a field, without ``None``. A field of another type needs a check here."""


def _as(annotation: str, value: Any, name: str) -> Any:
    """The value in the type that a field has.

    Raises:
        Exception: it has the wrong type; the message has the expected type and the value.
    """
    kind = annotation.removesuffix(" | None")
    return None if value is None and kind != annotation else _CHECKS[kind](value, name)


_TYPES = {item.name: str(item.type) for item in dataclass_fields(Step) if item.name in STEP_FIELDS}
