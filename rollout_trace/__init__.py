"""Records what an agent really said to its language model and what it really answered, token for token, in-process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollout_trace._version import __version__
from rollout_trace.lazily import lazily

if TYPE_CHECKING:
    from rollout_trace.clients.anthropic import wrap_anthropic
    from rollout_trace.clients.common import bind, unwrap
    from rollout_trace.clients.openai import wrap_openai
    from rollout_trace.context import current, propagate, reward, trajectory
    from rollout_trace.costs import Price, PriceTable
    from rollout_trace.drifting import Drift, drift
    from rollout_trace.errors import DriftError, ExportError, FormatError, RolloutTraceError, WriteError
    from rollout_trace.file import JSONLWriter, read
    from rollout_trace.findings import Finding
    from rollout_trace.grouping import Group, groups
    from rollout_trace.guard import Stats, stats
    from rollout_trace.installed import Integration, integrations
    from rollout_trace.model import (
        Attempt,
        Completion,
        Cost,
        ErrorInfo,
        Step,
        Task,
        TokenIssue,
        ToolCall,
        ToolRun,
        Usage,
    )
    from rollout_trace.place import orphans
    from rollout_trace.probe_report import ProbeReport
    from rollout_trace.probing import probe
    from rollout_trace.recordings import recording
    from rollout_trace.retokenizing import RetokenizeReport
    from rollout_trace.selection import SequenceOptions
    from rollout_trace.sequence import Sequence, SequenceReport, Sequences
    from rollout_trace.toolruns import tool_run
    from rollout_trace.trajectories import Trajectory

# Names are imported when they are first used: agents start fast, and an exporter's user needs no recorder.
_HOMES = {
    "rollout_trace.clients.anthropic": ("wrap_anthropic",),
    "rollout_trace.clients.common": ("bind", "unwrap"),
    "rollout_trace.clients.openai": ("wrap_openai",),
    "rollout_trace.context": ("current", "propagate", "reward", "trajectory"),
    "rollout_trace.costs": ("Price", "PriceTable"),
    "rollout_trace.drifting": ("Drift", "drift"),
    "rollout_trace.errors": ("DriftError", "ExportError", "FormatError", "RolloutTraceError", "WriteError"),
    "rollout_trace.file": ("JSONLWriter", "read"),
    "rollout_trace.findings": ("Finding",),
    "rollout_trace.grouping": ("Group", "groups"),
    "rollout_trace.guard": ("Stats", "stats"),
    "rollout_trace.installed": ("Integration", "integrations"),
    "rollout_trace.place": ("orphans",),
    "rollout_trace.model": (
        "Attempt",
        "Completion",
        "Cost",
        "ErrorInfo",
        "Step",
        "Task",
        "TokenIssue",
        "ToolCall",
        "ToolRun",
        "Usage",
    ),
    "rollout_trace.probe_report": ("ProbeReport",),
    "rollout_trace.probing": ("probe",),
    "rollout_trace.recordings": ("recording",),
    "rollout_trace.retokenizing": ("RetokenizeReport",),
    "rollout_trace.selection": ("SequenceOptions",),
    "rollout_trace.sequence": ("Sequence", "SequenceReport", "Sequences"),
    "rollout_trace.toolruns": ("tool_run",),
    "rollout_trace.trajectories": ("Trajectory",),
}
_SUBMODULES = frozenset({"export", "frames", "testing", "wire"})
__getattr__, __dir__ = lazily(__name__, _HOMES, _SUBMODULES)


__all__ = [
    "Attempt",
    "Completion",
    "Cost",
    "Drift",
    "DriftError",
    "ErrorInfo",
    "ExportError",
    "Finding",
    "FormatError",
    "Group",
    "Integration",
    "JSONLWriter",
    "Price",
    "PriceTable",
    "ProbeReport",
    "RetokenizeReport",
    "RolloutTraceError",
    "Sequence",
    "SequenceOptions",
    "SequenceReport",
    "Sequences",
    "Stats",
    "Step",
    "Task",
    "TokenIssue",
    "ToolCall",
    "ToolRun",
    "Trajectory",
    "Usage",
    "WriteError",
    "__version__",
    "bind",
    "current",
    "drift",
    "groups",
    "integrations",
    "orphans",
    "probe",
    "propagate",
    "read",
    "recording",
    "reward",
    "stats",
    "tool_run",
    "trajectory",
    "unwrap",
    "wrap_anthropic",
    "wrap_openai",
]
