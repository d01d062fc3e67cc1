"""``trajectories``: a hypothesis strategy for tests of what reads trajectories, such as exporters of your own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rollout_trace.data.extras import PolicySpan, SamplingMask, TopTokens
from rollout_trace.data.model import (
    Attempt,
    Completion,
    ErrorInfo,
    Step,
    Task,
    TokenIssue,
    ToolCall,
    ToolRun,
    Usage,
)
from rollout_trace.data.tokens import TokenStore
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.wire.profiles import can_request_ids

from ._dialects import DIALECTS, Dialect, Messages

try:
    from hypothesis import strategies as st
except ImportError as error:
    raise ImportError(
        "rollout_trace.testing.trajectories needs hypothesis, which is not installed: pip install hypothesis"
    ) from error

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy


_START = datetime(2026, 1, 1, tzinfo=timezone.utc)
_TOOLS = ("search", "fetch", "python")
_TEXTS = st.text(max_size=12) | st.sampled_from(
    ["Paris", "two\nlines", '"quoted"\\', "naïve 数 🐍", "<|im_end|>", "</script>", "\x00\x1b[31m\u2028", "a" * 300]
)
_IDS = st.lists(st.sampled_from([1, 2, 3, 7, 1000, 151_643]), min_size=1, max_size=5)
log_probabilities = st.floats(max_value=0, width=32, allow_nan=False, allow_infinity=False)
_SELDOM = st.sampled_from([False, False, False, True])
_MISSING = TokenIssue(code="ids_missing", message="the server sent no completion token ids.")


class Options(NamedTuple):
    """Options of ``trajectories``."""

    min_steps: int
    max_steps: int
    protocols: tuple[str, ...]
    with_ids: bool | None
    with_tools: bool
    with_errors: bool
    with_drift: bool
    with_forks: bool
    with_extras: bool


def trajectories(
    *,
    min_steps: int = 0,
    max_steps: int = 5,
    protocols: Sequence[str] | None = None,
    with_ids: bool | None = None,
    with_tools: bool = True,
    with_errors: bool = True,
    with_drift: bool = True,
    with_forks: bool = True,
    with_extras: bool = False,
) -> SearchStrategy[Trajectory]:
    """Makes a hypothesis strategy for closed trajectories like those of real agents, to test code that reads them.

    Requests continue each other, so that prompts share their beginnings. Messages, answers and tool results have the
    shape of the trajectory's protocol; texts contain any characters except lone surrogates. Examples are reproducible:
    hypothesis is the only source of randomness. Two trajectories of one test may have the same id.

    Args:
        min_steps: minimum number of steps of a trajectory.
        max_steps: maximum number of steps of a trajectory.
        protocols: any of ``openai.chat``, ``anthropic.messages``, ``openai.responses``, ``google.generate_content``,
            ``ollama.chat`` and ``openai.completions``. None: all, or with ``with_ids=True`` those that have ids.
        with_ids: True: every completion has token ids and logprobs; False: none has; None: some have.
        with_tools: include tools, tool calls and results.
        with_errors: include failed calls and tools, and answers that were cut off, cancelled or discarded.
        with_drift: include prompts that repeat an earlier completion with other ids.
        with_forks: include several answers to a request (``n=2``), and conversations that restart or continue an
            earlier step.
        with_extras: include experts, prompt logprobs, likeliest tokens and other arrays, where there are ids.

    Raises:
        ImportError: hypothesis is not installed.
        ValueError: a protocol is unknown, or the numbers of steps are not ``0 <= min_steps <= max_steps``.
    """
    if not 0 <= min_steps <= max_steps:
        raise ValueError(f"min_steps={min_steps!r}, max_steps={max_steps!r}: expected 0 <= min_steps <= max_steps.")
    unknown = [one for one in protocols or () if one not in DIALECTS]
    if unknown or protocols == [] or isinstance(protocols, str):
        given = protocols if isinstance(protocols, str) or not unknown else unknown[0]
        raise ValueError(f"protocols: expected a list of {', '.join(DIALECTS)}; got {given!r}.")
    usual = [one for one in DIALECTS if not with_ids or can_request_ids(one)]
    chosen = tuple(usual if protocols is None else protocols)
    return _trajectories(
        Options(
            min_steps, max_steps, chosen, with_ids, with_tools, with_errors, with_drift, with_forks, with_extras
        )
    )  # fmt: skip


@st.composite
def _trajectories(draw: DrawFn, options: Options) -> Trajectory:
    protocols, has_ids = options.protocols, options.with_ids is True
    if options.with_ids is None and (with_place := tuple(filter(can_request_ids, protocols))):
        has_ids = draw(st.sampled_from([True, True, False]))
        protocols = with_place if has_ids else protocols
    agent = _Agent(draw, options, draw(st.sampled_from(protocols)), has_ids)
    agent.run(draw(st.integers(options.min_steps, options.max_steps)))
    failed = options.with_errors and draw(_SELDOM)
    group = draw(st.none() | st.sampled_from(["g1", "g2"]))
    return Trajectory(
        id=agent.id,
        name=draw(st.sampled_from(["agent", "solver"])),
        steps=agent.steps,
        tool_runs=agent.tool_runs,
        task=draw(st.none() | st.builds(Task, id=_TEXTS, data=st.none() | st.fixed_dictionaries({"answer": _TEXTS}))),
        group_id=group,
        rollout_index=None if group is None else draw(st.integers(0, 3)),
        reward=draw(st.none() | st.floats(-1, 1)),
        rewards=draw(st.none() | st.fixed_dictionaries({"format": st.floats(0, 1)})),
        metadata=draw(st.none() | st.fixed_dictionaries({"note": _TEXTS})),
        status="failed" if failed else "completed",
        error=draw(_errors()) if failed else None,
        started_at=_START,
        ended_at=_START + timedelta(seconds=len(agent.steps) + 1),
    )


def _errors() -> SearchStrategy[ErrorInfo]:
    kinds = st.sampled_from([("APITimeoutError", None), ("RateLimitError", 429), ("InternalServerError", 500)])
    return st.builds(lambda kind, text: ErrorInfo(type=kind[0], message=text, status=kind[1]), kinds, _TEXTS)


class _Request(NamedTuple):
    """A request that the agent may send next."""

    messages: Messages
    ids: list[int]
    """Of the prompt."""
    sampled_from: int
    """Position in them where the last completion begins."""


class _Agent:
    """Draws the steps of one trajectory, as an agent makes them: each request from the answers before it."""

    def __init__(self, draw: DrawFn, options: Options, protocol: str, has_ids: bool) -> None:
        self._draw, self._options, self._protocol = draw, options, protocol
        self._dialect: Dialect = DIALECTS[protocol]
        self._tokens = TokenStore()
        self.id = f"{draw(st.integers(0, 2**32)):024x}"
        self.steps: list[Step] = []
        self.tool_runs: list[ToolRun] = []
        self._has_ids = has_ids
        # A few trajectories miss something here and there: others could hardly have two steps in a row.
        self._has_holes = options.with_ids is None and draw(_SELDOM)
        self._engine = "vllm" if self._has_ids else draw(st.none() | st.just("openai"))
        self._names = self._tools()
        # They are empty for a protocol without tools.
        self._offered = [self._dialect.tool(name) for name in self._names if self._dialect.tool is not None]
        self._calls = 0

    def _tools(self) -> list[str]:
        if not self._options.with_tools or self._dialect.tool is None:
            return []
        return self._draw(st.lists(st.sampled_from(_TOOLS), unique=True, max_size=2))

    def run(self, count: int) -> None:
        """Makes the given number of steps."""
        requests = [self._first()]
        while len(self.steps) < count:
            request = self._chosen(requests)
            status = self._status(0)
            after = self._step(request, 0, status)
            # Of a call that failed there is one step.
            if status == "ok" and self._options.with_forks and len(self.steps) < count and self._draw(_SELDOM):
                after = self._step(request, 1, self._status(1)) or after
            self._calls += 1
            if after is not None:
                requests.append(after)

    def _first(self) -> _Request:
        said = self._dialect.said
        system = self._draw(st.none() | _TEXTS)
        messages = [] if system is None else said("system", system)
        return _Request(self._joined([*messages, *said("user", self._draw(_TEXTS))]), self._draw(_IDS), 0)

    def _chosen(self, requests: list[_Request]) -> _Request:
        """The next request: nearly always the last that an answer led to."""
        kinds = ["on", "on", "on"]
        kinds += ["drift", "drift"] if self._options.with_drift and self._has_ids else []
        kinds += ["fork", "anew"] if self._options.with_forks else []
        kind = self._draw(st.sampled_from(kinds))
        if kind == "anew" and len(requests) > 1:
            requests.append(self._first())
        request = requests[self._draw(st.integers(0, len(requests) - 1))] if kind == "fork" else requests[-1]
        if kind != "drift" or len(requests) == 1:
            return request
        at = self._draw(st.integers(request.sampled_from, len(request.ids) - 1))
        return request._replace(ids=[*request.ids[:at], request.ids[at] + 1, *request.ids[at + 1 :]])

    def _step(self, request: _Request, choice: int, status: Any) -> _Request | None:
        """Adds a step; returns the request that its answer leads to, None without an answer to continue."""
        completion = None if status in ("error", "cancelled") else self._completion()
        sampled = self._draw(_IDS)
        step = self._made(request, choice, status, completion, sampled)
        self.steps.append(step)
        if completion is None or status != "ok":
            return None
        messages = [*request.messages, *self._dialect.answered(completion), *self._follow_up(step, completion)]
        ids = [*request.ids, *sampled, *self._draw(_IDS)]
        return _Request(self._joined(messages), ids, len(request.ids))

    def _status(self, choice: int) -> Any:
        if not self._options.with_errors:
            return "ok"
        other = ("superseded",) if choice else ("error", "cancelled", "abandoned", "superseded")
        return self._draw(st.sampled_from(["ok"] * 3 * len(other) + list(other)))

    def _completion(self) -> Completion:
        draw = self._draw
        calls = draw(st.lists(st.sampled_from(self._names), max_size=2)) if self._names else []
        reasoning = None if self._dialect.tool is None else draw(st.none() | st.none() | _TEXTS.filter(bool))
        return Completion(
            content=draw(st.none() | _TEXTS.filter(bool)) if calls else draw(_TEXTS),
            reasoning=reasoning,
            tool_calls=tuple(
                ToolCall(id=f"call_{len(self.steps)}_{at}", name=name, arguments=self._arguments())
                for at, name in enumerate(calls)
            ),
        )

    def _arguments(self) -> str:
        text = json.dumps({"query": self._draw(_TEXTS)}, ensure_ascii=self._draw(st.booleans()))
        # Where they are sent back as text, nothing keeps a model from breaking off inside.
        is_text = self._protocol in ("openai.chat", "openai.responses")
        return text[:-2] if is_text and self._options.with_errors and self._draw(_SELDOM) else text

    def _made(
        self, request: _Request, choice: int, status: Any, completion: Completion | None, sampled: list[int]
    ) -> Step:
        at, began = len(self.steps), _START + timedelta(seconds=self._calls)
        error = self._draw(_errors()) if status == "error" else None
        counts = status == "ok" and (self._has_ids or self._draw(st.booleans()))
        return Step(
            id=f"{self.id}-{self._calls}.{choice}",
            call_id=f"{self.id}-{self._calls}",
            choice=choice,
            index=at,
            protocol=self._protocol,
            engine=self._engine,
            model="tiny",
            response_model=None if completion is None else "tiny",
            messages=list(request.messages),
            tools=list(self._offered) or None,
            sampling={"temperature": self._draw(st.sampled_from([1.0, 0.7]))},
            completion=completion,
            finish_reason=None if status != "ok" or completion is None else self._finish(completion),
            usage=Usage(input=len(request.ids), output=len(sampled)) if counts else None,
            started_at=began,
            latency=0.5,
            attempts=(Attempt(started_at=began, duration=0.5, status=200 if error is None else error.status),),
            status=status,
            error=error,
            reward=self._draw(st.none() | st.none() | st.floats(-1, 1)),
            **self._arrays(request.ids, sampled, status),
        )

    def _finish(self, completion: Completion) -> str:
        stop, calls, limit = self._dialect.reasons
        if completion.tool_calls:
            return calls
        return limit if self._options.with_errors and self._draw(_SELDOM) else stop

    def _arrays(self, prompt: list[int], sampled: list[int], status: str) -> dict[str, Any]:
        """Ids, logprobs and extras of a step, where it has them."""
        if status in ("error", "cancelled"):
            return {}
        if not self._has_ids or (self._has_holes and self._draw(st.booleans())):
            return {"token_issue": _MISSING}
        spans = self._tokens.add(np.array(prompt, np.int32), np.array(sampled, np.int32))
        given = not self._has_holes or self._draw(st.booleans())
        logprobs = self._draw(st.lists(log_probabilities, min_size=len(sampled), max_size=len(sampled)))
        found: dict[str, Any] = {
            "prompt_token_ids": spans[0],
            "completion_token_ids": spans[1],
            "logprobs": logprobs if given else None,
            "token_source": "engine",
        }
        return {**found, **self._draw(extras(len(prompt), len(sampled)))} if self._options.with_extras else found

    def _follow_up(self, step: Step, completion: Completion) -> Messages:
        """Returns what the agent adds to an answer before it asks again: tool results, or the next question."""
        if not completion.tool_calls:
            return self._dialect.said("user", self._draw(_TEXTS))
        results = [(call, self._draw(_TEXTS)) for call in completion.tool_calls]
        if self._draw(st.booleans()):
            self.tool_runs += [self._run(step, call, text) for call, text in results]
        return self._dialect.returned(results)

    def _run(self, step: Step, call: ToolCall, text: str) -> ToolRun:
        failed = self._options.with_errors and self._draw(_SELDOM)
        return ToolRun(
            tool_call_id=call.id,
            name=call.name,
            arguments=call.arguments,
            result=None if failed else text,
            error=ErrorInfo(type="ToolError", message=text) if failed else None,
            started_at=_START + timedelta(seconds=self._calls + 0.6),
            duration=0.1,
            step_id=step.id,
        )

    def _joined(self, messages: Messages) -> Messages:
        """The messages of a request: of a protocol of texts, one text."""
        return ["".join(messages)] if messages and isinstance(messages[0], str) else messages


def _filled(draw: st.DrawFn, dtype: Any, *shape: int) -> Any:
    """An array of any content: few different rows, as those of answers to one prompt are."""
    generator = np.random.default_rng(draw(st.integers(0, 2)))
    if dtype is not np.float32:
        return generator.integers(0, 200, shape).astype(dtype)
    values = -generator.random(shape, np.float32)
    values[:1] = np.nan
    return values


@st.composite
def extras(draw: st.DrawFn, prompt: int, completion: int) -> dict[str, Any]:
    """Any of the fields that are aligned to the ids."""
    k, found = draw(st.integers(0, 3)), {}
    wanted = draw(st.sets(st.sampled_from(["experts", "scores", "top", "chosen", "mask", "spans"])))
    if "experts" in wanted:
        dtype, layers = draw(st.sampled_from([np.uint8, np.uint16, np.int32])), draw(st.sampled_from([2, 2, 0]))
        positions = draw(st.integers(0, max(0, prompt + completion - 1)))
        found["routed_experts"] = _filled(draw, dtype, positions, layers, 2)
    if "scores" in wanted:
        found["prompt_logprobs"] = _filled(draw, np.float32, prompt)
    if "top" in wanted:
        found["prompt_top_tokens"] = TopTokens(_filled(draw, np.int32, prompt, k), _filled(draw, np.float32, prompt, k))
    if "chosen" in wanted:
        found["top_tokens"] = TopTokens(
            _filled(draw, np.int32, completion, k), _filled(draw, np.float32, completion, k)
        )
    if "mask" in wanted:
        counts = _filled(draw, np.int32, completion) % 4
        total = int(counts.sum())
        logprobs = draw(st.none() | st.just(_filled(draw, np.float32, total)))
        found["sampling_mask"] = SamplingMask(_filled(draw, np.int32, total), counts, logprobs)
    if "spans" in wanted:
        cut = draw(st.integers(0, completion))
        versions = [draw(_TEXTS | st.integers(-5, 5)) for _ in range(2)]
        found["policy_spans"] = (PolicySpan(0, cut, versions[0]), PolicySpan(cut, completion, versions[1]))
    return found
