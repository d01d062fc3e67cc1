"""The report of a probe: the results of its calls, of what comes beside ids and logprobs, and the conclusions."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from rollout_trace._field_docs import document_fields
from rollout_trace.clients import probe_turns

if TYPE_CHECKING:
    from rollout_trace.clients.probe_turns import ProbeExactTurns
    from rollout_trace.data.model import LogprobsMode, Step

CHAT = "openai.chat"

_NEEDED = ("plain", "streamed", "with tools")
"""The kinds of calls that agents make: a trainer needs ids and logprobs of each that the protocol has."""

_GIVEN: Final = {None: "-", True: "yes", False: "no"}

_NOISE = 0.02
"""Most nats by which a logprob differs between equal calls: kernels round differently from batch to batch."""


_COLUMNS: Final = {
    "prompt_logprobs": "prompt logprobs",
    "top_tokens": "top tokens",
    "sampling_mask": "mask",
    "routed_experts": "experts",
    "policy_spans": "versions",
}
"""The fields of ``Step`` that are looked for, and the names of their columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeCall:
    """The result of one call of a probe."""

    name: str
    answered: bool = False
    status: int | None = None
    """HTTP status of the response; None without one."""
    choices: int = 0
    """Number of choices in the answer."""
    prompt_ids: bool = False
    completion_ids: bool = False
    logprobs: bool = False
    aligned: bool | None = None
    """Whether there is one logprob per id, and as many ids as the usage counts; None if that cannot be determined."""
    problem: str | None = None
    """Why the call failed, or why ids or logprobs were withheld."""

    @classmethod
    def of(cls, name: str, steps: Sequence[Step], error: Exception | None) -> ProbeCall:
        """Builds the result from the call's steps and the exception that its caller got."""
        status = steps[0].attempts[-1].status if steps and steps[0].attempts else None
        if error is not None or not steps or any(step.status != "ok" for step in steps):
            return cls(name=name, status=status, problem=_failure(steps, error))
        issue = next((step.token_issue for step in steps if step.token_issue is not None), None)
        return cls(
            name=name,
            answered=True,
            status=status,
            choices=len(steps),
            prompt_ids=all(_is_filled(step.prompt_token_ids) for step in steps),
            completion_ids=all(_is_filled(step.completion_token_ids) for step in steps),
            logprobs=all(_is_filled(step.logprobs) for step in steps),
            aligned=_aligned(steps),
            problem=None if issue is None else issue.message,
        )


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeExtra:
    """Whether answers in one form (streamed, unstreamed, ...) carry one extra."""

    extra: str
    """The field of ``Step``: ``routed_experts``, ..."""
    protocol: str
    streamed: bool
    given: bool | None
    """Whether the answer has the extra; None if the call was refused or failed."""
    problem: str | None
    """Why the extra is missing, and what to do; None if it is there, or if no reason is known."""
    request: Mapping[str, Any] | None
    """Body of the test call as it was sent; None if it was not sent."""

    @property
    def form(self) -> str:
        """Name of the form: ``chat``, ``chat streamed``, ..."""
        return self.protocol.rpartition(".")[2] + (" streamed" if self.streamed else "")

    @property
    def is_of_engine(self) -> bool:
        """Whether the answer came from the engine's own endpoint."""
        return not self.protocol.startswith("openai.")


def extras_of(protocol: str, *, streamed: bool, steps: Sequence[Step], problem: str | None) -> list[ProbeExtra]:
    """The result of one call, for each extra. ``problem``: why it failed; None where it was answered."""
    step = steps[0] if steps else None
    request = None
    with suppress(ValueError):
        request = json.loads((step.request_bytes if step is not None else None) or b"null")
    request = request if isinstance(request, dict) else None
    issues = {issue.field: issue.message for issue in step.extra_issues} if step is not None else {}
    form: dict[str, Any] = {"protocol": protocol, "streamed": streamed, "request": request}
    found = []
    for extra in _COLUMNS:
        given = None
        if problem is None and step is not None:
            has_version = extra == "policy_spans" and step.policy_version is not None
            given = has_version or getattr(step, extra) is not None
        found.append(ProbeExtra(extra=extra, given=given, problem=issues.get(extra) or problem, **form))
    return found


@dataclass(slots=True)
class ProtocolProbe:
    """The calls of a probe so far in one protocol: results and steps by the call's name."""

    model: str
    protocol: str = CHAT
    calls: dict[str, ProbeCall] = field(default_factory=dict)
    steps: dict[str, Sequence[Step]] = field(default_factory=dict)
    extras: list[ProbeExtra] = field(default_factory=list)
    exact_turns: ProbeExactTurns | None = None
    """None where the engine is not known to take ids in this protocol."""

    @property
    def has_tools(self) -> bool:
        """Whether the protocol has tools."""
        return self.protocol != "openai.completions"

    def answered(self, name: str) -> bool:
        return name in self.calls and self.calls[name].answered

    def step(self, name: str) -> Step | None:
        """The first step of a call that was answered, else None."""
        return self.steps[name][0] if self.answered(name) else None


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """What an endpoint serves. ``str(report)`` is a table of the calls and the conclusions."""

    model: str
    """The model that was asked."""
    engine: str | None
    """The engine, as named or detected; None if it is unknown, and then no fields were added to the calls."""
    prompt_ids: bool
    """Whether every answer has the ids of its prompt."""
    completion_ids: bool
    """Whether every answer has the ids of its completion."""
    logprobs: bool
    """Whether every answer has logprobs."""
    aligned: bool | None
    """Whether every answer has one logprob per id, and as many ids as its usage counts; None if it cannot be known."""
    stream_equals_unary: bool | None
    """Whether streamed and unstreamed answers have the same ids and logprobs; None if equal calls differ anyway."""
    n_choices: int
    """Choices in the answer to ``n=2``; 0 if it was refused."""
    tools: bool
    """Whether calls with tools are answered."""
    logprobs_mode: LogprobsMode | None
    """Distribution of the logprobs, measured at two temperatures; None if it could not be determined."""
    failures: Mapping[str, str]
    """Error messages, by name of the failed call."""
    trainable: bool
    """Whether all protocols return prompt ids, completion ids and aligned logprobs: plain, streamed and with tools."""
    protocols: Mapping[str, bool]
    """``trainable`` for each protocol."""
    reasons: tuple[str, ...]
    """Why the endpoint is not trainable."""
    advice: tuple[str, ...]
    """What to change in the call that wraps the client."""
    calls: tuple[ProbeCall, ...]
    """The calls by name, in order. Names begin with the protocol, unless that is chat."""
    extras: tuple[ProbeExtra, ...] = ()
    """What answers in each form carry besides ids and logprobs: prompt logprobs, experts, ... Empty if the engine is
    unknown, or sends no extras."""
    exact_turns: tuple[ProbeExactTurns, ...] = ()
    """Whether the server accepts ids beside messages, by protocol. Empty unless the engine is known to accept them."""

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def report_of(tried: Sequence[ProtocolProbe]) -> ProbeReport:
    """The report of a probe from its calls in one or more protocols."""
    calls = [replace(call, name=_prefix(probed) + call.name) for probed in tried for call in probed.calls.values()]
    answered = [call for call in calls if call.answered]
    alignments = [call.aligned for call in answered]
    equal = [_stream_equals_unary(probed) for probed in tried]
    reasons = {
        probed.protocol: [_prefix(probed) + reason for reason in _reasons(probed, stream_equals_unary=same)]
        for probed, same in zip(tried, equal, strict=True)
    }
    steps = [step for probed in tried for steps in probed.steps.values() for step in steps]
    choices = [probed.calls["n=2"].choices for probed in tried if "n=2" in probed.calls]
    with_tools = [probed.answered("with tools") for probed in tried if probed.has_tools]
    mode = next((mode for probed in tried if (mode := _mode(probed)) is not None), None)
    extras = [one for probed in tried for one in probed.extras]
    return ProbeReport(
        model=tried[0].model,
        engine=next((step.engine for step in steps if step.engine is not None), None),
        prompt_ids=bool(answered) and all(call.prompt_ids for call in answered),
        completion_ids=bool(answered) and all(call.completion_ids for call in answered),
        logprobs=bool(answered) and all(call.logprobs for call in answered),
        aligned=_all(alignments) if alignments else None,
        stream_equals_unary=_all(equal),
        n_choices=min(choices, default=0),
        tools=bool(with_tools) and all(with_tools),
        logprobs_mode=mode,
        failures={call.name: str(call.problem) for call in calls if not call.answered},
        trainable=not any(reasons.values()),
        protocols={protocol: not of_protocol for protocol, of_protocol in reasons.items()},
        reasons=tuple(reason for of_protocol in reasons.values() for reason in of_protocol),
        advice=tuple(_advice(steps, mode)),
        calls=tuple(calls),
        # The engine's own endpoint is tried once, with the first protocol: it comes last.
        extras=tuple(sorted(extras, key=lambda one: one.is_of_engine)),
        exact_turns=tuple(probed.exact_turns for probed in tried if probed.exact_turns is not None),
    )


def _prefix(probed: ProtocolProbe) -> str:
    return "" if probed.protocol == CHAT else f"{probed.protocol}: "


def _all(facts: Sequence[bool | None]) -> bool | None:
    """``all`` with unknowns: None unless a fact is False."""
    return False if False in facts else None if None in facts else True


def _advice(steps: Sequence[Step], measured: LogprobsMode | None) -> Iterator[str]:
    recorded = next((step.logprobs_mode for step in steps if step.logprobs is not None), None)
    if measured is not None and measured != recorded:
        label = "are recorded without saying which they are" if recorded is None else f"are recorded as {recorded}"
        yield f"logprobs are {measured}, and {label}: pass logprobs_mode={measured!r} to wrap_openai()"


def _failure(steps: Sequence[Step], error: Exception | None) -> str:
    recorded = next((step.error for step in steps if step.error is not None), None)
    # The server's own message first: an SDK's exception wraps it in more text.
    if recorded is not None and recorded.status is not None:
        return f"HTTP {recorded.status}: {recorded.message}"
    if error is not None:
        return f"{type(error).__name__}: {error}"
    return f"{recorded.type}: {recorded.message}" if recorded is not None else "the answer has no completion."


def _is_filled(values: Any) -> bool:
    return values is not None and len(values) > 0


def _aligned(steps: Sequence[Step]) -> bool | None:
    # Without ids nothing is misaligned: it cannot be determined.
    if any(step.token_issue is not None and step.token_issue.code != "ids_missing" for step in steps):
        return False
    pairs = [(step.completion_token_ids, step.logprobs) for step in steps]
    equal = [len(ids) == len(logprobs) for ids, logprobs in pairs if ids is not None and logprobs is not None]
    return all(equal) if len(equal) == len(pairs) else None


def _stream_equals_unary(probed: ProtocolProbe) -> bool | None:
    plain, again, streamed = (probed.step(name) for name in ("plain", "again", "streamed"))
    if plain is None or again is None or streamed is None:
        return None
    if plain.completion_token_ids is None and plain.logprobs is None:
        return None
    # A server whose answers to equal calls differ shows nothing about streaming.
    return _same_tokens(plain, streamed) if _same_tokens(plain, again) else None


def _same_tokens(one: Step, other: Step) -> bool:
    names = ("prompt_token_ids", "completion_token_ids")
    if any(_as_list(getattr(one, name)) != _as_list(getattr(other, name)) for name in names):
        return False
    first, second = _as_list(one.logprobs), _as_list(other.logprobs)
    if first is None or second is None:
        return first is second
    return len(first) == len(second) and all(abs(a - b) <= _NOISE for a, b in zip(first, second, strict=True))


def _as_list(values: Any) -> list[Any] | None:
    return None if values is None else list(values.tolist())


def _mode(probed: ProtocolProbe) -> LogprobsMode | None:
    """The logprobs' distribution: processed logprobs of a token move with the temperature, raw ones do not."""
    steps = [probed.step(name) for name in probed.calls if name.startswith("temperature")]
    if len(steps) != 2 or steps[0] is None or steps[1] is None:
        return None
    # A logprob near 0 moves in neither case.
    pairs = [(a, b) for a, b in _comparable(steps[0], steps[1]) if -15 < min(a, b) < -0.1]
    if not pairs:
        return None
    shift, size = max((abs(a - b), abs(min(a, b))) for a, b in pairs)
    if shift <= _NOISE * (1 + size):
        return "raw"
    # In between, rounding might explain the shift: not decided.
    return "processed" if shift > 0.1 * (1 + size) else None


def _comparable(one: Step, other: Step) -> Iterator[tuple[float, float]]:
    """Pairs of logprobs of one token after the same tokens: those of the common prefix, and the first alternatives."""
    ids = zip(_as_list(one.completion_token_ids) or (), _as_list(other.completion_token_ids) or (), strict=False)
    logprobs = zip(_as_list(one.logprobs) or (), _as_list(other.logprobs) or (), strict=False)
    for (id_one, id_other), pair in zip(ids, logprobs, strict=False):
        if id_one != id_other:
            break
        yield pair
    first, second = _alternatives(one), _alternatives(other)
    for key in first.keys() & second.keys():
        yield first[key], second[key]


def _alternatives(step: Step) -> dict[str, float]:
    """Logprobs of the first token's alternatives, by their identifying fields (id, text, bytes)."""
    entries = step.top_logprobs[0] if step.top_logprobs else ()
    logprobs: dict[str, float] = {}
    for entry in entries if isinstance(entries, Sequence) else ():
        value = entry.get("logprob") if isinstance(entry, Mapping) else None
        if isinstance(value, (int, float)) and math.isfinite(value):
            logprobs.setdefault(repr([entry.get(name) for name in ("id", "token_id", "token", "bytes")]), value)
    return logprobs


def _reasons(probed: ProtocolProbe, *, stream_equals_unary: bool | None) -> Iterator[str]:
    for name in _NEEDED:
        call = probed.calls.get(name)
        if call is None:
            continue
        if not call.answered:
            yield f"{name}: {call.problem}"
            continue
        parts = {"prompt ids": call.prompt_ids, "completion ids": call.completion_ids, "logprobs": call.logprobs}
        lacking = " and ".join(part for part, is_present in parts.items() if not is_present)
        if lacking:
            yield f"{name}: no {lacking}" + (f" ({call.problem.rstrip('.')})" if call.problem else "")
        elif call.aligned is not True:
            yield f"{name}: {call.problem or 'ids and logprobs cannot be matched.'}"
    if stream_equals_unary is False:
        yield "streamed: ids or logprobs differ from those of unstreamed calls"


_HEADER = ("call", "answered", "choices", "prompt ids", "completion ids", "logprobs", "aligned")


def _lines(report: ProbeReport) -> Iterator[str]:
    yield f"Probe of model {report.model!r}, engine: {report.engine or 'not known'}"
    yield ""
    yield from _table([_HEADER, *(_row(call) for call in report.calls)])
    yield ""
    if report.extras:
        yield from _extra_lines(report.extras)
        yield ""
    if report.exact_turns:
        yield from _turn_lines(report.exact_turns)
        yield ""
    yield f"stream equals unary: {_yes_or_no(report.stream_equals_unary)}"
    yield f"logprobs are: {report.logprobs_mode or 'not told'}"
    for name, problem in report.failures.items():
        yield f"failed: {name}: {problem}"
    for advice in report.advice:
        yield f"advice: {advice}"
    if list(report.protocols) != [CHAT]:
        for protocol, trainable in report.protocols.items():
            yield f"trainable in {protocol}: {_yes_or_no(trainable)}"
    yield f"trainable: {_yes_or_no(report.trainable)}"
    for reason in report.reasons:
        yield f"  - {reason}"


def _row(call: ProbeCall) -> tuple[str, ...]:
    if not call.answered:
        return call.name, "no", *("-" for _ in _HEADER[2:])
    facts = (call.prompt_ids, call.completion_ids, call.logprobs, call.aligned)
    return call.name, "yes", str(call.choices), *(_yes_or_no(fact) for fact in facts)


def _extra_lines(extras: Sequence[ProbeExtra]) -> Iterator[str]:
    """A table of forms and extras, the reasons for what is missing, and the requests that were made."""
    forms: dict[str, list[ProbeExtra]] = {}
    for one in extras:
        forms.setdefault(one.form, []).append(one)
    rows = [("extras", *_COLUMNS.values())]
    rows += [(form, *(_GIVEN[one.given] for one in of_form)) for form, of_form in forms.items()]
    yield from _table(rows)
    reasons: dict[tuple[str, str], list[str]] = {}
    for form, of_form in forms.items():
        missing = [(_COLUMNS[one.extra], one.problem) for one in of_form if not one.given and one.problem is not None]
        if all(one.given is None for one in of_form):
            # A call that failed has one reason, of no column.
            missing = [("", str(of_form[0].problem))]
        for found in missing:
            reasons.setdefault(found, []).append(form)
    for (column, problem), of_forms in reasons.items():
        yield f"  - {', '.join(filter(None, [column, *of_forms]))}: {problem}"


def _turn_lines(exact_turns: Sequence[ProbeExactTurns]) -> Iterator[str]:
    rows = [(one.form, *(_GIVEN[fact] for fact in (one.takes_ids, one.tokenizes, one.works))) for one in exact_turns]
    yield from _table([probe_turns.HEADER, *rows])
    for one in exact_turns:
        if one.problem is not None:
            yield f"  - {one.form}: {one.problem}"


def _table(rows: Sequence[Iterable[str]]) -> Iterator[str]:
    table = [tuple(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _yes_or_no(fact: bool | None) -> str:
    return "not told" if fact is None else "yes" if fact else "no"
