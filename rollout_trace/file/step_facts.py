"""Writes what a step has beside messages, answer and tokens, and a tool run beside its result, as JSON.

For formats of others that have a free place for it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from rollout_trace.file.decode import step_without_tables, tool_run_of
from rollout_trace.file.fields import step_json, tool_run_json
from rollout_trace.file.records import StepRecord, ToolRunRecord

if TYPE_CHECKING:
    from rollout_trace.data.model import Step, ToolRun

_NAMES = {
    **dict.fromkeys(("agent", "engine", "model", "response_model", "response_id", "sampling", "stop_reason")),
    **dict.fromkeys(("usage", "cost", "attempts", "error", "extra", "extra_issues", "choice")),
    "time_to_first_token_ms": "time_to_first_token",
}
"""Names in the record; that of the step's field where it is another."""


def facts_record(step: Step) -> dict[str, Any]:
    """The facts of a step as a line of a file has them, without those that are None."""
    record = json.loads(step_json(step))
    return {name: record[name] for name in _NAMES if name in record}


def facts_of(value: dict[str, Any]) -> dict[str, Any]:
    """The fields of a step, by name, that ``facts_record`` wrote.

    Raises:
        ValueError: a value has another type.
    """
    known = {name: item for name, item in value.items() if name in _NAMES}
    step = step_without_tables(msgspec.convert({**known, "id": ""}, StepRecord))
    return {name: getattr(step, name) for name in (_NAMES[one] or one for one in known)}


def run_record(run: ToolRun) -> dict[str, Any]:
    """A tool run as a line of a file has it; without its result where that is a text, which formats have themselves."""
    record = json.loads(tool_run_json(run))
    return {name: value for name, value in record.items() if name != "result" or not isinstance(value, str)}


def run_of(value: dict[str, Any], result: Any) -> ToolRun:
    """The tool run that ``run_record`` wrote, with this result where it was a text.

    Raises:
        ValueError: a value has another type.
    """
    return tool_run_of(msgspec.convert({"result": result, **value}, ToolRunRecord))
