"""Which tool runs match what a test expects, and the text that names them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from inspect import isroutine
from typing import TYPE_CHECKING, Any

from rollout_trace.guard import printable
from rollout_trace.view.values import text_of
from rollout_trace.wire.chat_messages import arguments_of

from ._tool_runs import InferredToolRun

if TYPE_CHECKING:
    from rollout_trace.data.model import ToolRun

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
    """What is expected, as a call: ``search(query='x')``."""
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
