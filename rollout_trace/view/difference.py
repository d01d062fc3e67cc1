"""Compares two trajectories: their results, their settings, and the first step, message and token that differ.

Not compared are ids, times, and what differs between any two runs: host, process, command line, ids of tool calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar

from msgspec import field

from rollout_trace.data.model import Step
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.file.find import IndexedLine
from rollout_trace.view.model import Message, Part, Shown, StepView, Tokens
from rollout_trace.view.tokens import TokenTexts
from rollout_trace.view.trajectory_view import TrajectoryView
from rollout_trace.view.values import plain

K = TypeVar("K", bound=Hashable)
Pair: TypeAlias = "tuple[IndexedLine | None, IndexedLine | None]"
"""A trajectory of the first and one of the second file; None: it is only in the other one."""
TOLERANCE = 1e-4
"""Logprobs of one token differ where they are further apart than this."""
_AROUND = 24
"""Tokens shown before and after the first that differs."""
_VOLATILE = frozenset({"host", "pid", "process_started", "command"})
_RESULTS = ("status", "reward", "rewards", "metrics", "stop_reason", "error", "steps", "input_tokens", "output_tokens")
_ORIGIN = ("name", "task", "group", "index")


class ValueDifference(Shown):
    """A value that differs; None if a side has none."""

    name: str
    a: Any = None
    b: Any = None
    step: int | None = None
    """Index of the first step with the difference; None for one of the whole trajectory."""


class TokenDifference(Shown):
    """The first token of a completion or a prompt that differs."""

    position: int
    a_ids: list[int]
    """From this position on; empty where the other one goes on alone."""
    b_ids: list[int]
    before: str | None = None
    """Text before it, which both have; None where texts are not known."""
    a_text: str | None = None
    b_text: str | None = None


class MessageDifference(Shown):
    """The first message, or part of an answer, that differs; None if a side has none."""

    a: Message | None = None
    b: Message | None = None


class StepDifference(Shown):
    """A step that differs."""

    index: int
    what: list[str]
    """Of ``messages``, ``prompt tokens``, ``answer``, ``tokens``, ``logprobs``, ``finish``, ``status``, ``missing``."""
    messages: MessageDifference | None = None
    answer: MessageDifference | None = None
    prompt: TokenDifference | None = None
    tokens: TokenDifference | None = None
    logprobs: float | None = None
    """The largest difference of a logprob."""


class TrajectoryDifference(Shown):
    """How two trajectories differ."""

    a: str
    b: str
    """Their ids."""
    equal: bool
    results: list[ValueDifference] = field(default_factory=list)
    settings: list[ValueDifference] = field(default_factory=list)
    n_a: int = 0
    n_b: int = 0
    """Number of steps."""
    differing_steps: int = 0
    first: StepDifference | None = None
    fork: list[str] = field(default_factory=list)
    """Lines of a tree, where one went on from the other, or both from one and the same (``rt.fork``)."""

    @property
    def sentence(self) -> str:
        """The difference in a line."""
        if self.equal:
            return "equal"
        parts = []
        if self.first is not None:
            parts.append(f"step {self.first.index}: {', '.join(self.first.what)}")
            if self.differing_steps > 1:
                parts.append(f"{self.differing_steps:,} steps differ")
        names = [one.name for one in (*self.results, *self.settings)]
        if names:
            parts.append(", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else ""))
        return "; ".join(parts)


def difference(
    a: Trajectory, b: Trajectory, *, decode: TokenTexts | None = None, tolerance: float = TOLERANCE
) -> TrajectoryDifference:
    """How two trajectories differ.

    ``decode``: a tokenizer, for texts that are not recorded; logprobs no further apart than ``tolerance`` are equal.
    """
    one, two = TrajectoryView(a, decode=decode), TrajectoryView(b, decode=decode)
    results = list(_values(_results(one), _results(two)))
    settings = [*_values(_origin(one), _origin(two)), *_step_settings(a.steps, b.steps)]
    fork = _fork(a, b)
    first, count = _first_step(one, two, tolerance, is_fork=bool(fork))
    return TrajectoryDifference(
        a=a.id,
        b=b.id,
        equal=not (results or settings or count),
        results=results,
        settings=settings,
        n_a=len(a.steps),
        n_b=len(b.steps),
        differing_steps=count,
        first=first,
        fork=fork,
    )


def _fork(a: Trajectory, b: Trajectory) -> list[str]:
    """The tree of two trajectories; nothing where they are not related by a fork."""
    of_a, of_b = a.forked_from, b.forked_from
    if of_b is not None and of_b.id == a.id:
        return ["a", f"└─ b, after {of_b.step} calls of a"]
    if of_a is not None and of_a.id == b.id:
        return ["b", f"└─ a, after {of_a.step} calls of b"]
    if of_a is not None and of_b is not None and of_a.id == of_b.id:
        return [of_a.id, f"├─ a, after {of_a.step} calls of it", f"└─ b, after {of_b.step} calls of it"]
    return []


def _results(view: TrajectoryView) -> dict[str, Any]:
    return _flat({name: getattr(view.summary, name) for name in _RESULTS})


def _origin(view: TrajectoryView) -> dict[str, Any]:
    one = view.trajectory
    environment = {name: value for name, value in (plain(one.environment) or {}).items() if name not in _VOLATILE}
    values = {name: getattr(view.summary, name) for name in _ORIGIN}
    return _flat({**values, "environment": environment, "metadata": plain(one.metadata)})


def _flat(values: dict[str, Any], before: str = "") -> dict[str, Any]:
    """The values by their paths: ``environment.packages.openai``."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        path = f"{before}{name}"
        if isinstance(value, dict):
            found.update(_flat(value, f"{path}."))
        elif value is not None:
            found[path] = value
    return found


def _values(a: dict[str, Any], b: dict[str, Any], step: int | None = None) -> Iterator[ValueDifference]:
    for name in dict.fromkeys([*a, *b]):
        if a.get(name) != b.get(name):
            yield ValueDifference(name=name, a=a.get(name), b=b.get(name), step=step)


def _step_settings(a: Sequence[Step], b: Sequence[Step]) -> list[ValueDifference]:
    """The settings of requests that differ, each at the first step where it does."""
    found: dict[str, ValueDifference] = {}
    for at, (one, two) in enumerate(zip(a, b, strict=False)):
        if _given(one) == _given(two):
            continue
        for value in _values(_settings(one), _settings(two), at):
            found.setdefault(value.name, value)
    return list(found.values())


_given = attrgetter("model", "protocol", "engine", "sampling", "tools")


def _settings(step: Step) -> dict[str, Any]:
    tools = {f"tool {_tool_name(tool, at)}": plain(tool) for at, tool in enumerate(step.tools or ())}
    own = {name: getattr(step, name) for name in ("model", "protocol", "engine")}
    return {**_flat({**own, "sampling": plain(step.sampling)}), **tools}


def _tool_name(tool: Any, at: int) -> str:
    inner = tool.get("function") if isinstance(tool, dict) else None
    name = (inner if isinstance(inner, dict) else tool if isinstance(tool, dict) else {}).get("name")
    return name if isinstance(name, str) else str(at)


def _first_step(
    a: TrajectoryView, b: TrajectoryView, tolerance: float, *, is_fork: bool
) -> tuple[StepDifference | None, int]:
    """The first step that differs, and the number of those that do. Of a fork's answered steps what was said counts."""
    n_a, n_b = len(a.trajectory.steps), len(b.trajectory.steps)
    first, count = None, abs(n_a - n_b)
    for at in range(min(n_a, n_b)):
        (one,), (two,) = a.steps(at, at + 1, tokens=False), b.steps(at, at + 1, tokens=False)
        what = list(_what(one, two, a.trajectory.steps[at], b.trajectory.steps[at], tolerance))
        if is_fork and "cached" in (one.line.status, two.line.status):
            what = [name for name in what if name in _SAID]
        count += bool(what)
        if what and first is None:
            first = _details(a, b, at, what)
    if first is None and n_a != n_b:
        first = StepDifference(index=min(n_a, n_b), what=[f"only in {'a' if n_a > n_b else 'b'}"])
    return first, count


_SAID = ("messages", "answer", "finish")


def _what(one: StepView, two: StepView, a: Step, b: Step, tolerance: float) -> Iterator[str]:
    if _bare(one.new) != _bare(two.new):
        yield "messages"
    if _ids_differ(a.prompt_token_ids, b.prompt_token_ids):
        yield "prompt tokens"
    if _bare([one.answer]) != _bare([two.answer]):
        yield "answer"
    if _ids_differ(a.completion_token_ids, b.completion_token_ids):
        yield "tokens"
    elif _gap(a, b) > tolerance:
        yield "logprobs"
    if one.line.finish != two.line.finish:
        yield "finish"
    if one.line.status != two.line.status:
        yield "status"


def _ids_differ(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is not b
    return len(a) != len(b) or bool((a != b).any())


def _gap(a: Step, b: Step) -> float:
    """The largest difference of logprobs of the same tokens; of missing ones it is infinite."""
    if a.logprobs is None or b.logprobs is None:
        return 0.0 if a.logprobs is b.logprobs else float("inf")
    if len(a.logprobs) != len(b.logprobs):
        return float("inf")
    import numpy as np

    if bool((np.isnan(a.logprobs) != np.isnan(b.logprobs)).any()):
        return float("inf")
    # Equal ones first: of two that are infinite the difference is NaN.
    gaps = np.where(a.logprobs == b.logprobs, 0, abs(a.logprobs - b.logprobs))
    return float(np.nan_to_num(gaps, nan=0.0, posinf=np.inf).max(initial=0.0))


def _bare(messages: Iterable[Message | None]) -> list[Any]:
    """Messages without the ids of tool calls, which every run makes anew."""
    return [None if one is None else (one.role, one.name, list(map(_bare_part, one.parts))) for one in messages]


def _bare_part(part: Part) -> tuple[str, str, str | None]:
    return part.kind, part.text, part.name


def _details(a: TrajectoryView, b: TrajectoryView, at: int, what: list[str]) -> StepDifference:
    (one,), (two,) = a.steps(at, at + 1), b.steps(at, at + 1)
    x, y = a.trajectory.steps[at], b.trajectory.steps[at]
    gap = _gap(x, y) if "logprobs" in what else None
    return StepDifference(
        index=at,
        what=what,
        messages=_first_message(one.new, two.new) if "messages" in what else None,
        answer=MessageDifference(a=one.answer, b=two.answer) if "answer" in what else None,
        prompt=_token(x.prompt_token_ids, y.prompt_token_ids) if "prompt tokens" in what else None,
        tokens=_token(x.completion_token_ids, y.completion_token_ids, one.tokens, two.tokens)
        if "tokens" in what
        else None,
        logprobs=gap if gap is not None and gap != float("inf") else None,
    )


def _first_message(a: Sequence[Message], b: Sequence[Message]) -> MessageDifference:
    for one, two in zip(a, b, strict=False):
        if _bare([one]) != _bare([two]):
            return MessageDifference(a=one, b=two)
    at = min(len(a), len(b))
    return MessageDifference(a=a[at] if len(a) > at else None, b=b[at] if len(b) > at else None)


def _token(a: Any, b: Any, one: Tokens | None = None, two: Tokens | None = None) -> TokenDifference | None:
    if a is None or b is None:
        return None
    at = first_difference(a, b)
    end = at + _AROUND
    found = TokenDifference(position=at, a_ids=a[at:end].tolist(), b_ids=b[at:end].tolist())
    a_texts, b_texts = (None if tokens is None else tokens.texts for tokens in (one, two))
    if a_texts is not None and b_texts is not None:
        found.before = "".join(a_texts[max(0, at - _AROUND) : at])
        found.a_text, found.b_text = "".join(a_texts[at:end]), "".join(b_texts[at:end])
    return found


def first_difference(a: Any, b: Any) -> int:
    """The first position at which two arrays differ; the length of the shorter where that is the beginning of both."""
    n = min(len(a), len(b))
    unequal = ((a[:n] != b[:n]) & ((a[:n] == a[:n]) | (b[:n] == b[:n]))).nonzero()[0]
    return int(unequal[0]) if len(unequal) else n


def pairs_of(a: Sequence[IndexedLine], b: Sequence[IndexedLine]) -> list[Pair]:
    """Every trajectory of both, once: pairs in the order of ``a``, then those that are only in ``b``.

    Trajectories of one id are a pair. The others are paired by agent's name, task, group and rollout index; where
    several have the same, in their order.
    """
    with_id: dict[str, deque[int]] = {}
    for at, line in enumerate(b):
        with_id.setdefault(line.head.id, deque()).append(at)
    partner: list[int | None] = [_take(with_id, line.head.id) for line in a]
    taken = {at for at in partner if at is not None}
    with_key: dict[tuple[object, ...], deque[int]] = {}
    for at, line in enumerate(b):
        if at not in taken:
            with_key.setdefault(_key(line), deque()).append(at)
    for at, line in enumerate(a):
        if partner[at] is None:
            partner[at] = _take(with_key, _key(line))
    taken = {at for at in partner if at is not None}
    pairs: list[Pair] = [(line, None if at is None else b[at]) for line, at in zip(a, partner, strict=True)]
    return pairs + [(None, line) for at, line in enumerate(b) if at not in taken]


def _take(places: dict[K, deque[int]], key: K) -> int | None:
    left = places.get(key)
    return left.popleft() if left else None


def _key(line: IndexedLine) -> tuple[object, ...]:
    head = line.head
    return head.name, None if head.task is None else head.task.id, head.group_id, head.rollout_index
