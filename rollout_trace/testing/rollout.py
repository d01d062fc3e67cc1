"""``RecordedRollout``: what a test's agent did, as the fixture ``rollout`` gives it, with asserts that read well."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from rollout_trace.data.costs import total_cost, total_tokens
from rollout_trace.data.model import Cost, Step, ToolCall, ToolRun, Usage
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.guard import describe, printable
from rollout_trace.train.checks import Finding
from rollout_trace.train.drift import Drift
from rollout_trace.train.selection import SequenceOptions
from rollout_trace.train.sequence import Sequence as Row
from rollout_trace.view.numbers import of
from rollout_trace.wire.chat_messages import answer, as_text, to_chat

from ._asserts import (
    calls_text,
    ending_text,
    ends_as,
    in_order,
    matching_runs,
    step_names,
    trainable_problems,
    wanted_text,
)
from ._tool_runs import InferredToolRun, runs_of
from .conversation_text import conversation_text

if TYPE_CHECKING:
    from typing_extensions import Unpack

Tool: TypeAlias = "str | re.Pattern[str]"
"""The name of a tool, or a pattern that its whole name matches."""


_HAS_CONVERSATION = "rollout_trace_conversation"
"""Attribute of the failures of asserts, whose texts have the conversation."""


def has_conversation(failure: BaseException) -> bool:
    """Whether a failure's text has the conversation, so that it need not be shown again."""
    return _HAS_CONVERSATION in vars(failure)


class RecordedRollout:
    """What an agent did in a test: its trajectory and those opened inside it.

    Every access reads the current state, so it can be used while the agent is still running. A failed assert raises
    AssertionError with what it found and a short form of the conversation.

    Args:
        trajectories: a function that returns the test's own trajectory, then those that the agent opened inside it, in
            order.
        base_url: a function that returns the address of the server that replaces the model servers; None without one.
        folder: a function that returns the folder in which programs run; None without one.
    """

    __slots__ = ("_base_url", "_folder", "_get")

    def __init__(
        self,
        trajectories: Callable[[], Sequence[Trajectory]],
        base_url: Callable[[], str | None] = lambda: None,
        folder: Callable[[], Path | None] = lambda: None,
    ) -> None:
        self._get = trajectories
        self._base_url = base_url
        self._folder = folder

    def __repr__(self) -> str:
        found = self.trajectories
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        return f"RecordedRollout({found[0]!r}{more})" if found else "RecordedRollout()"

    def __str__(self) -> str:
        return conversation_text(self.trajectories)

    @property
    def base_url(self) -> str:
        """The address to use instead of OpenAI's, both when the test is recorded and when it is replayed.

        Put it into the arguments or configuration of programs that read no environment variable. Child processes have
        it in ``OPENAI_BASE_URL``.

        Raises:
            AssertionError: the test has neither the marker ``replay`` nor the fixture ``scripted_llm``.
        """
        __tracebackhide__ = True
        found = self._base_url()
        if found is None:
            raise AssertionError("this test has no model server: give it the mark replay, or the fixture scripted_llm.")
        return found

    @property
    def folder(self) -> Path:
        """An empty folder for a program to work in. Its path is the same for each run; it is deleted after the test.

        The home folder of the test's child processes is beside it.

        Raises:
            AssertionError: the test's marker names no program (``cli=``).
        """
        __tracebackhide__ = True
        found = self._folder()
        if found is None:
            raise AssertionError(
                'this test has no folder: name a program in its mark, as replay(cli="claude-code") does.'
            )
        return found

    # What was recorded

    @property
    def trajectories(self) -> list[Trajectory]:
        """The test's own trajectory, then those that the agent opened inside it, in the order in which they opened."""
        return list(self._get())

    @property
    def trajectory(self) -> Trajectory:
        """The test's own trajectory.

        Raises:
            AssertionError: there is no trajectory.
        """
        __tracebackhide__ = True
        found = self.trajectories
        if not found:
            raise AssertionError("this rollout has no trajectory: nothing was recorded.")
        return found[0]

    @property
    def steps(self) -> list[Step]:
        """The steps of all trajectories, in the order in which they began."""
        steps = [step for trajectory in self.trajectories for step in trajectory.steps]
        if any(step.started_at is None for step in steps):
            return steps
        return sorted(steps, key=lambda step: step.started_at.timestamp() if step.started_at is not None else 0)

    @property
    def tool_runs(self) -> list[ToolRun]:
        """The tool runs of all trajectories, in the order in which the model asked for them.

        A tool that ran outside ``rt.tool_run`` is an ``InferredToolRun``: a tool call in a completion, and its result
        in a later request. A call without a result in a later request is only in ``tool_calls``.
        """
        return [run for run in self._runs() if not isinstance(run, InferredToolRun) or run.has_result]

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The tool calls in the completions of all steps, in order, whether or not the tools ran."""
        steps = (step for step in self.steps if step.status not in ("superseded", "cached"))
        return [call for step in steps if step.completion is not None for call in step.completion.tool_calls]

    @property
    def text(self) -> str:
        """The text of the last step's answer; empty if the answer has only tool calls.

        Raises:
            AssertionError: there is no step, or the last one has no answer.
        """
        __tracebackhide__ = True
        step = self._last_step()
        message = answer(step)
        if message is None:
            self._fail(f"the last step has no answer: {_status_text(step)}")
        content = as_text(message.get("content"))
        parts = content if isinstance(content, list) else [content]
        return "".join(part if isinstance(part, str) else _text_of(part) for part in parts if part is not None)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages of the last step's request and its answer, in the shape of OpenAI's chat; empty without steps.

        The objects are shared with the steps: do not change them.
        """
        steps = self._sampled()
        if not steps:
            return []
        last = answer(steps[-1])
        return [*to_chat(steps[-1]), *([] if last is None else [last])]

    @property
    def usage(self) -> Usage:
        """Token counts over all calls; a count that is unknown for any call is None."""
        steps = self.steps
        return Usage(
            input=total_tokens(steps, "input"),
            output=total_tokens(steps, "output"),
            cache_read=total_tokens(steps, "cache_read"),
            cache_write=total_tokens(steps, "cache_write"),
            reasoning=total_tokens(steps, "reasoning"),
        )

    @property
    def cost(self) -> Cost | None:
        """The cost of all calls; None if any call's cost is unknown."""
        return total_cost(self.steps)

    @property
    def reward(self) -> float | None:
        """The reward of the test's own trajectory; can be set to a finite number."""
        return self.trajectory.reward

    @reward.setter
    def reward(self, value: float | None) -> None:
        self.trajectory.reward = value

    def sequences(self, **options: Unpack[SequenceOptions]) -> list[Row]:
        """Returns the training rows of all trajectories, with the options of ``Trajectory.sequences``."""
        return [row for trajectory in self.trajectories for row in trajectory.sequences(**options)]

    def drift(self) -> list[Drift]:
        """Returns the places in all trajectories where a prompt repeats an earlier completion in other token ids."""
        return [event for trajectory in self.trajectories for event in trajectory.sequences().report.drift]

    def check(self, *, vocab_size: int | None = None) -> list[Finding]:
        """Returns the findings of ``Trajectory.check`` on all trajectories."""
        return [one for trajectory in self.trajectories for one in trajectory.check(vocab_size=vocab_size)]

    # Asserts

    def assert_called(
        self, tool: Tool, /, arguments: Any = None, *, times: int | None = None, **expected: Any
    ) -> list[ToolRun]:
        """Asserts that the model called a tool, or that the agent ran it. Returns the runs that match.

        A call without a run also counts, and is returned as an ``InferredToolRun``.

        Args:
            tool: its name, or a pattern (``re.compile``) that its whole name matches.
            arguments: expected arguments as a mapping, for names that are not Python identifiers or that this method
                uses itself; for a tool whose input is a text, that text. Compared like ``expected``.
            times: exact number of calls; None: at least one.
            **expected: some of the arguments. A pattern must be found in the text, a type must be the value's type, any
                other callable must return True for the value, and anything else is compared with ``==``.
        """
        __tracebackhide__ = True
        runs = self._runs()
        found = matching_runs(runs, tool, arguments, expected)
        if len(found) != times if times is not None else not found:
            often = "" if times is None else f" {of(times, 'time')}"
            instead = f"{of(len(found), 'call')} matched" if found else "no call did"
            what = f"expected {wanted_text(tool, arguments, expected)} to be called{often}; {instead}."
            self._fail(f"{what}\n{calls_text(runs, tool)}")
        return found

    def assert_not_called(self, tool: Tool, /, arguments: Any = None, **expected: Any) -> None:
        """Asserts that no call of a tool has these arguments; see ``assert_called``."""
        __tracebackhide__ = True
        found = matching_runs(self._runs(), tool, arguments, expected)
        if found:
            what = f"expected no call of {wanted_text(tool, arguments, expected)}; {of(len(found), 'call')} matched."
            self._fail(f"{what}\n{calls_text(found, tool)}")

    def assert_called_in_order(self, *tools: Tool | tuple[Tool, Mapping[str, Any]]) -> list[ToolRun]:
        """Asserts that tools were called in this order; others may be called between them. Returns their runs.

        Args:
            *tools: names or patterns, or pairs of one with expected arguments.
        """
        __tracebackhide__ = True
        runs = self._runs()
        pairs = [one if isinstance(one, tuple) else (one, {}) for one in tools]
        found = in_order(runs, pairs)
        if len(found) < len(pairs):
            wanted = [wanted_text(tool, None, arguments) for tool, arguments in pairs]
            after = f" after {wanted[len(found) - 1]}" if found else ""
            what = f"expected calls in this order: {', '.join(wanted)}; {wanted[len(found)]} was not called{after}."
            self._fail(f"{what}\n{calls_text(runs)}")
        return found

    def assert_steps(
        self, n: int | None = None, *, at_least: int | None = None, at_most: int | None = None
    ) -> list[Step]:
        """Asserts the number of steps of all trajectories, and returns them.

        Args:
            n: exact number.
            at_least: minimum number.
            at_most: maximum number.

        Raises:
            TypeError: none of them is given.
        """
        __tracebackhide__ = True
        wanted = {"": n, "at least ": at_least, "at most ": at_most}
        given = {how: number for how, number in wanted.items() if number is not None}
        if not given:
            raise TypeError("assert_steps() needs a number: assert_steps(3), at_least=1 or at_most=10.")
        steps = self.steps
        count = len(steps)
        is_right = {"": count == n, "at least ": count >= (at_least or 0), "at most ": count <= (at_most or 0)}
        wrong = [f"{how}{of(number, 'step')}" for how, number in given.items() if not is_right[how]]
        if wrong:
            self._fail(f"expected {' and '.join(wrong)}, found {count}.")
        return steps

    def assert_finished(self, reason: str | None = None) -> Step:
        """Asserts that the last step ended well, and returns it.

        Args:
            reason: the expected ``finish_reason``. ``"stop"``, ``"tool_calls"`` and ``"length"`` also match other
                providers' names (``end_turn``, ``tool_use``, ``max_tokens``, ...). None: any reason except a limit.
        """
        __tracebackhide__ = True
        step = self._last_step()
        if step.status != "ok":
            self._fail(f"expected the last step to finish: {_status_text(step)}")
        if not ends_as(step, reason):
            wanted = "that is no limit" if reason is None else repr(reason)
            self._fail(f"expected the finish reason {wanted}, {ending_text(step)}.")
        return step

    def assert_no_errors(self) -> None:
        """Asserts that no call failed, no tool failed, and the agent raised nothing.

        Failed attempts that the client retried successfully are not errors.
        """
        __tracebackhide__ = True
        problems = list(self._errors())
        if problems:
            self._fail("\n".join([f"expected no errors, found {len(problems)}:", *problems]))

    def assert_no_drift(self) -> None:
        """Asserts that no prompt repeats an earlier completion in other token ids.

        Also fails if no step has token ids, because drift cannot be detected then.
        """
        __tracebackhide__ = True
        events, names = self.drift(), step_names(self.trajectories)
        if events:
            lines = [f"  {_drift_text(one, names)}" for one in events]
            self._fail("\n".join([f"expected no drift, found {of(len(events), 'place')}:", *lines]))
        if not any(step.prompt_token_ids is not None for step in self.steps):
            problems = trainable_problems(self.trajectories, logprobs=False)
            self._fail("\n".join(["no step has token ids, so drift cannot be seen:", *problems]))

    def assert_trainable(self, *, logprobs: bool = True) -> list[Row]:
        """Asserts that every answer can be trained on: it has token ids, logprobs and no fatal finding.

        Steps that failed, were superseded, or have ``trainable=False`` are not checked; at least one step must remain.

        Args:
            logprobs: False does not require logprobs.

        Returns:
            The training rows.
        """
        __tracebackhide__ = True
        problems = trainable_problems(self.trajectories, logprobs=logprobs)
        if problems:
            self._fail("\n".join(["expected a rollout that can be trained on:", *problems]))
        rows = self.sequences()
        if not rows:
            self._fail(f"expected a rollout that can be trained on: none of {of(len(self.steps), 'step')} can.")
        return rows

    # What these have in common

    def _runs(self) -> list[ToolRun]:
        return [run for trajectory in self.trajectories for run in runs_of(trajectory)]

    def _sampled(self) -> list[Step]:
        return [step for step in self.steps if step.status != "superseded"]

    def _last_step(self) -> Step:
        __tracebackhide__ = True
        steps = self._sampled()
        if not steps:
            self._fail("the rollout has no step: no call to a model was recorded.")
        return steps[-1]

    def _errors(self) -> Iterator[str]:
        names = step_names(self.trajectories)
        for step in self.steps:
            if step.status == "error" or (step.error is not None and step.status != "superseded"):
                yield f"  {names[step.id]}: {_status_text(step)}"
        for run in self._runs():
            if run.error is not None:
                yield f"  tool {printable(run.name or '?', 80)}: {_error_text(run.error)}"
        for trajectory in self.trajectories:
            if trajectory.error is not None:
                yield f"  {printable(trajectory.name, 80)}: {_error_text(trajectory.error)}"

    def _fail(self, message: str) -> NoReturn:
        __tracebackhide__ = True
        try:
            shown = conversation_text(self.trajectories)
        except Exception as error:
            # The failure that the test found matters more than its picture.
            shown = f"(the conversation cannot be shown: {describe(error)})"
        failure = AssertionError(f"{message}\n\n{shown}")
        vars(failure)[_HAS_CONVERSATION] = True
        raise failure


def _text_of(part: Any) -> str:
    text = part.get("text") if isinstance(part, dict) else None
    return text if isinstance(text, str) else ""


def _error_text(error: Any) -> str:
    status = "" if error.status is None else f" (HTTP {error.status})"
    return printable(f"{error.type}{status}: {error.message}", 300)


def _status_text(step: Step) -> str:
    return f"its status is {step.status!r}{'' if step.error is None else f', {_error_text(step.error)}'}."


def _drift_text(event: Drift, names: Mapping[str, str]) -> str:
    from rollout_trace.train.drift import MEANINGS

    step, previous = names.get(event.step_id, event.step_id), names.get(event.previous_step_id, event.previous_step_id)
    return (
        f"{step}: its prompt leaves {previous} at token {event.position:,} ({event.kind}: {MEANINGS[event.kind]}): "
        f"expected {list(event.expected)}, found {list(event.found)}."
    )
