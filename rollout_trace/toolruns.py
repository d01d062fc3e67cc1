"""Executions of tools, as the agent's own loop reports them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rollout_trace.frames import ToolFrame
from rollout_trace.model import ToolRun


@contextmanager
def tool_run(name: str, *, tool_call_id: str | None = None, arguments: Any = None) -> Iterator[ToolRun]:
    """Times one execution of a tool and adds it to the current trajectory; set ``result`` on what it yields.

    An exception of the tool is recorded and raised on. Outside a trajectory the run is yielded all the same, and kept
    nowhere.
    """
    with ToolFrame(name, tool_call_id=tool_call_id, arguments=_snapshot(arguments)) as frame:
        yield frame.run


def _snapshot(arguments: Any) -> Any:
    """The arguments as they are now: a tool may change what it is given."""
    try:
        return copy.deepcopy(arguments)
    except Exception:
        return arguments
