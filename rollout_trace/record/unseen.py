"""Steps of calls whose bytes were not seen, made from the fields that a framework's hook reported.

Nothing about those fields is certain. One of the wrong type, or that no step has, is left out and named in the step's
``token_issue``, of an extra in its ``extra_issues``; ids, logprobs and extras pass the same checks as those from the
wire. Nothing raises: a bad field must not cost the other steps of the trajectory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import fields as dataclass_fields
from datetime import datetime
from operator import index
from typing import TYPE_CHECKING, Any, get_args

from rollout_trace import credentials
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
    from rollout_trace.data.tokens import FloatArray

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
    for name, value in _items(reported):
        try:
            if value is not None:
                fields[name] = _checked(name, value)
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


def _items(reported: Iterable[Mapping[str, Any]]) -> Iterable[tuple[Any, Any]]:
    for fields in reported:
        if isinstance(fields, Mapping):
            yield from fields.items()
        else:
            # No field of a step: it is left out, and the issue names it so.
            yield "an answer", fields


def _checked(name: str, value: Any) -> Any:
    """The value in the type that the step's field has.

    Raises:
        Exception: it has the wrong type; the message has the expected type and the value.
    """
    if name not in STEP_FIELDS:
        raise ValueError(f"a step has no such field; got {_brief(value)}.")
    check = _CHECKS.get(name)
    return value if check is None else check(value, name)


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
    message = f"{len(texts)} texts came of {len(tokens)} tokens."
    return ExtraIssue(field="token_texts", code="not_aligned", message=message)


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


@returns_issue("prompt_logprobs")
def _prompt_logprobs(values: Any) -> FloatArray:
    return checked_logprobs(as_float32(values), "prompt")


def _refuse(expected: str, value: Any) -> Any:
    raise ValueError(f"expected {expected}, got {_brief(value)}.")


def _brief(value: Any) -> str:
    text = credentials.cut(value if isinstance(value, str) else repr(value))
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


_Check = Callable[[Any, str], Any]


def _text(value: Any, name: str) -> str:
    return str.__str__(value) if isinstance(value, str) else str(value)


def _whole(value: Any, name: str) -> int:
    return int(index(value))


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


def _one_of(words: Sequence[str]) -> _Check:
    return lambda value, name: value if value in words else _refuse(f"one of {', '.join(words)}", value)


def _completion(value: Any, name: str) -> Any:
    if not isinstance(value, Completion) or not isinstance(value.tool_calls, (tuple, list)):
        return _refuse("a Completion", value)
    wrong = [call for call in value.tool_calls if not isinstance(call, ToolCall)]
    if wrong:
        _refuse("a Completion whose tool_calls are ToolCalls", wrong[0])
    if not isinstance(value.content, (str, list, tuple, type(None))):
        _refuse("a Completion whose content is a text or a list of parts", value.content)
    for one in (value, *value.tool_calls):
        for text in ("role", "reasoning", "refusal", "id", "name", "arguments", "type"):
            # Files hold it as text: a value whose __str__ raises costs this field here, later the whole trajectory.
            str(getattr(one, text, None))
    return value


def _words(kind: type, *names: str) -> _Check:
    def check(value: Any, name: str) -> Any:
        is_right = isinstance(value, kind) and all(isinstance(getattr(value, word), str) for word in names)
        return value if is_right else _refuse(f"{kind.__name__} with {' and '.join(names)} as text", value)

    return check


def _usage(value: Any, name: str) -> Any:
    if not isinstance(value, Usage):
        return _refuse("a Usage", value)
    for count in (value.input, value.output, value.cache_read, value.cache_write, value.reasoning):
        if count is not None and (isinstance(count, bool) or int(count) != count or count < 0):
            _refuse("a Usage of whole numbers", value)
    if not isinstance(value.extra, (Mapping, type(None))):
        _refuse("a Usage whose extra is a mapping", value.extra)
    return value


def _cost(value: Any, name: str) -> Any:
    if not isinstance(value, Cost):
        return _refuse("a Cost", value)
    _number(value.amount, name)
    return value


def _each(kind: type) -> _Check:
    def check(value: Any, name: str) -> Any:
        is_right = isinstance(value, (tuple, list)) and all(isinstance(one, kind) for one in value)
        return tuple(value) if is_right else _refuse(f"a tuple of {kind.__name__}s", value)

    return check


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


def _spans(value: Any, name: str) -> tuple[PolicySpan, ...]:
    spans = tuple(PolicySpan(*one) for one in _list(value, name))
    wrong = [one for one in spans if not (type(one.begin) is type(one.end) is int and type(one.version) in (str, int))]
    return _refuse("spans of begin, end and version", wrong[0]) if wrong else spans


_CHECK_OF_TYPE: dict[str, _Check] = {
    "str": _text,
    "int": _whole,
    "float": _number,
    "bool": _of(bool),
    "bytes": _of(bytes),
    "datetime": _of(datetime),
    "str | int": _of(str, int),
    "Sequence[Any]": _list,
    "Sequence[str]": as_token_texts,
    "Sequence[Sequence[Mapping[str, Any]]]": _list,
    "Mapping[str, Any]": _mapping,
    "dict[str, Any]": _mapping,
    "IntArray": as_int32,
    "FloatArray": _logprobs,
    "float | Sequence[float]": _advantage,
    "Completion": _completion,
    "Usage": _usage,
    "Cost": _cost,
    "tuple[Attempt, ...]": _each(Attempt),
    "ErrorInfo": _words(ErrorInfo, "type", "message"),
    "TopTokens": _top_tokens,
    "SamplingMask": _sampling_mask,
    "ExpertArray": _experts,
    "tuple[PolicySpan, ...]": _spans,
    "tuple[ExtraIssue, ...]": _each(ExtraIssue),
    "TokenIssue": _words(TokenIssue, "code", "message"),
    "TokenSource": _one_of(get_args(TokenSource)),
    "LogprobsMode": _one_of(get_args(LogprobsMode)),
    "StepStatus": _one_of(get_args(StepStatus)),
}
"""By the annotation of the field in ``Step``, without ``None``. A field of another type needs a check here."""
_CHECKS = {
    item.name: _CHECK_OF_TYPE[str(item.type).removesuffix(" | None")]
    for item in dataclass_fields(Step)
    if item.name in STEP_FIELDS
}
