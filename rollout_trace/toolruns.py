"""Executions of tools, as the agent's own loop reports them."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

from rollout_trace.context import current
from rollout_trace.model import ToolRun, error_info, nanoseconds


@contextmanager
def tool_run(name: str, *, tool_call_id: str | None = None, arguments: Any = None) -> Iterator[ToolRun]:
    """Times one execution of a tool and adds it to the current trajectory; set ``result`` on what it yields.

    An exception of the tool is recorded and raised on. Outside a trajectory the run is yielded all the same, and kept
    nowhere.
    """
    run = ToolRun(
        name=name, tool_call_id=tool_call_id, arguments=_snapshot(arguments), started_at=datetime.now(timezone.utc)
    )
    trajectory = current()
    if trajectory is not None:
        trajectory.tool_runs.append(run)
    began = time.perf_counter()
    try:
        yield run
    except BaseException as error:
        run.error = error_info(error)
        raise
    finally:
        run.duration = nanoseconds(time.perf_counter() - began)


def _snapshot(arguments: Any) -> Any:
    """The arguments as they are now: a tool may change what it is given."""
    try:
        return copy.deepcopy(arguments)
    except Exception:
        return arguments
