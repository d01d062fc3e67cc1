"""Helpers of the asserts on rollouts: matching runs, how an answer ended, why a step cannot be trained on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from inspect import isroutine
from typing import Any

from rollout_trace.data.model import CUT_OFF, Step, ToolRun
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.guard import printable
from rollout_trace.train.checks import Finding
from rollout_trace.train.selection import n_sampled, reason_left_out
from rollout_trace.view.values import text_of
from rollout_trace.wire.chat_messages import arguments_of
from rollout_trace.wire.profiles import can_request_ids, sends_no_ids

from ._tool_runs import InferredToolRun

_SHOWN = 8
"""Calls that are listed."""


def matching_runs(
    runs: Sequence[ToolRun], tool: str | re.Pattern[str], arguments: Any, expected: Mapping[str, Any]
) -> list[ToolRun]:
    """The runs of a tool whose arguments are as expected."""
    return [run for run in runs if _is_tool(run, tool) and _fits(run.arguments, arguments, expected)]


def in_order(
    runs: Sequence[ToolRun], wanted: Sequence[tuple[str | re.Pattern[str], Mapping[str, Any]]]
) -> list[ToolRun]:
    """The first runs that match, one after the other; fewer than are wanted where one does not follow."""
    left = iter(runs)
    found: list[ToolRun] = []
    for tool, arguments in wanted:
        run = next((one for one in left if matching_runs([one], tool, None, arguments)), None)
        if run is None:
            break
        found.append(run)
    return found


def _is_tool(run: ToolRun, tool: str | re.Pattern[str]) -> bool:
    if isinstance(tool, str):
        return run.name == tool
    return run.name is not None and tool.fullmatch(run.name) is not None


def _fits(given: Any, arguments: Any, expected: Mapping[str, Any]) -> bool:
    if isinstance(arguments, Mapping):
        expected = {**arguments, **expected}
    elif arguments is not None and not _equals(given, arguments):
        return False
    if not expected:
        return True
    values = arguments_of(given)
    return values is not None and all(
        name in values and _equals(values[name], wanted) for name, wanted in expected.items()
    )


def _equals(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, re.Pattern):
        return isinstance(value, str) and wanted.search(value) is not None
    if isinstance(wanted, type) and not _compares_itself(wanted):
        return isinstance(value, wanted)
    return bool(wanted(value)) if _is_condition(wanted) else bool(wanted == value)


def _is_condition(wanted: Any) -> bool:
    """Whether a value is a function that says what fits, rather than something to compare with."""
    return callable(wanted) and (isroutine(wanted) or not _compares_itself(wanted))


def _compares_itself(wanted: Any) -> bool:
    """Whether ``==`` is the value's own, as that of the matchers of libraries, which may be classes or callable."""
    kind: Any = type(wanted)
    return kind.__eq__ not in (object.__eq__, type.__eq__)


def wanted_text(tool: str | re.Pattern[str], arguments: Any, expected: Mapping[str, Any]) -> str:
    """Returns the expected call as text: ``search(query='x')``."""
    name = tool if isinstance(tool, str) else f"/{tool.pattern}/"
    if isinstance(arguments, Mapping):
        expected = {**arguments, **expected}
    given = [] if arguments is None or isinstance(arguments, Mapping) else [_value_text(arguments)]
    given += [f"{key}={_value_text(one)}" for key, one in expected.items()]
    return printable(f"{name}({', '.join(given)})" if given else name)


def _value_text(wanted: Any) -> str:
    if isinstance(wanted, re.Pattern):
        return f"/{wanted.pattern}/"
    if isinstance(wanted, type) or _is_condition(wanted):
        return str(getattr(wanted, "__name__", wanted))
    return repr(wanted)


def calls_text(runs: Sequence[ToolRun], tool: str | re.Pattern[str] | None = None) -> str:
    """The calls that were made, a line each: those of the tool where there are any, else all."""
    own = [run for run in runs if tool is not None and _is_tool(run, tool)]
    listed = own or list(runs)
    if not listed:
        return "No tool was called."
    lines = [f"  {_call_text(run)}" for run in listed[:_SHOWN]]
    if len(listed) > _SHOWN:
        lines.append(f"  ... and {len(listed) - _SHOWN:,} more")
    return "\n".join(["Its calls:" if own else "Calls of any tool:", *lines])


def _call_text(run: ToolRun) -> str:
    values = arguments_of(run.arguments)
    # Arguments that are no object as they were written: an object as a Python call has it, to copy into a test.
    given = text_of(run.arguments) if values is None else ", ".join(f"{key}={one!r}" for key, one in values.items())
    note = "" if not isinstance(run, InferredToolRun) or run.has_result else "  (no result in a later request)"
    failed = "" if run.error is None else f"  failed: {run.error.type}: {run.error.message}"
    return printable(f"{run.name or '?'}({given})", 300) + printable(f"{note}{failed}", 200)


_STOP = frozenset({"stop", "end_turn", "stop_sequence", "STOP", "eos", "eos_token", "completed"})
_CALLS = frozenset({"tool_calls", "tool_use", "function_call"})


def ends_as(step: Step, reason: str | None) -> bool:
    """Whether a step's answer ended for a reason, or for what its provider calls so; None: for any but a limit."""
    found = step.finish_reason
    if reason is None:
        return found is not None and found not in CUT_OFF
    return found == reason or _kind(step) == reason


def _kind(step: Step) -> str | None:
    """The reason as OpenAI's chat names it; None where it has no name there."""
    found = step.finish_reason
    if found in CUT_OFF:
        return "length"
    if found in _CALLS:
        return "tool_calls"
    if found not in _STOP:
        return None
    # Google's STOP is the end of an answer with calls too.
    return "tool_calls" if found == "STOP" and step.completion is not None and step.completion.tool_calls else "stop"


def ending_text(step: Step) -> str:
    """Returns how the answer ended, after a comma."""
    if step.finish_reason is None:
        return "but none was recorded"
    return f"found {printable(repr(step.finish_reason), 80)}"


_NOT_MEANT = frozenset({"error", "cancelled", "abandoned", "superseded", "cached", "running", "not_trainable"})
"""Reasons for which a step has nothing to be trained on."""


def step_names(trajectories: Sequence[Trajectory]) -> dict[str, str]:
    """Returns each step's name for messages, by id: its index, as in the conversation, and its agent."""
    is_one = len(trajectories) == 1
    return {
        step.id: f"step {at}" if is_one else f"step {at} of {printable(trajectory.name, 60)}"
        for trajectory in trajectories
        for at, step in enumerate(trajectory.steps)
    }


def trainable_problems(trajectories: Sequence[Trajectory], *, logprobs: bool = True) -> list[str]:
    """Lines on steps that cannot be trained on though their calls ended well, one for those with the same problem."""
    names, found = step_names(trajectories), dict[str, list[str]]()
    for trajectory in trajectories:
        findings = trajectory.check()
        for step in trajectory.steps:
            what = _problem(step, [one for one in findings if one.step_id == step.id], logprobs)
            if what is not None:
                found.setdefault(what, []).append(names[step.id])
    if not names:
        return ["  no call to a model was recorded."]
    return [f"  {_listed(steps)}: {what}" for what, steps in found.items()]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4:,} more" if len(names) > 4 else "")


def _problem(step: Step, findings: Sequence[Finding], logprobs: bool) -> str | None:
    reason = reason_left_out(step)
    if reason in _NOT_MEANT:
        return None
    fatal = next((one for one in findings if one.grade == "fatal" and one.code != reason), None)
    if reason is None and fatal is None:
        lacks_logprobs = logprobs and step.logprobs is None
        return f"logprobs_missing: it has ids without logprobs. {_remedy(step)}" if lacks_logprobs else None
    if reason is None and fatal is not None:
        return printable(f"{fatal.code}: {fatal.message}", 400)
    return f"{reason}: {_why(step, reason, findings)} {_remedy(step) if n_sampled(step) is None else ''}".rstrip()


def _why(step: Step, reason: str | None, findings: Sequence[Finding]) -> str:
    if step.token_issue is not None and step.token_issue.code == reason:
        return printable(step.token_issue.message, 400)
    found = next((one.message for one in findings if one.code == reason), "sequences() leaves it out.")
    return printable(found, 400)


def _remedy(step: Step) -> str:
    server = f" (engine {step.engine!r})" if step.engine is not None else ""
    if sends_no_ids(step.engine, step.protocol) or not can_request_ids(step.protocol):
        return (
            f"This server{server} sends no token ids: run the agent against one that does, such as vLLM or SGLang, "
            "or make ids from the text with trajectory.retokenize(tokenizer)."
        )
    if step.engine is None:
        return 'Name the server, which asks it for ids and logprobs: rt.instrument(engine="vllm").'
    return f"Ask the server{server} for token ids and logprobs; rt.probe(client) says what it sends."
