"""Records the requests an agent sends to its language model and the answers, token for token, in-process."""

from __future__ import annotations

from rollout_trace._lazy import lazy_names, register
from rollout_trace._version import __version__

TYPE_CHECKING = False  # Not from `typing`: importing that takes longer than the rest of the package.
if TYPE_CHECKING:
    from rollout_trace.clients.anthropic import wrap_anthropic
    from rollout_trace.clients.common import bind, unwrap
    from rollout_trace.clients.google import wrap_google
    from rollout_trace.clients.openai import wrap_openai
    from rollout_trace.clients.probe import probe
    from rollout_trace.clients.probe_report import ProbeReport
    from rollout_trace.clients.tinker import wrap_tinker
    from rollout_trace.clients.transformers import wrap_transformers
    from rollout_trace.clients.vllm import wrap_vllm
    from rollout_trace.collection.collect import acollect, collect
    from rollout_trace.collection.executor import Executor
    from rollout_trace.collection.facts import CallTotals
    from rollout_trace.collection.job import Job, Outcome, RolloutTimeout, WorkerLost
    from rollout_trace.collection.processes import ProcessExecutor
    from rollout_trace.collection.ray_executor import RayExecutor
    from rollout_trace.collection.rollout import Rollout
    from rollout_trace.collection.snapshot import Progress
    from rollout_trace.collection.summary import CollectSummary
    from rollout_trace.collection.totals import PassRate, Percentiles
    from rollout_trace.data.costs import Price, PriceTable
    from rollout_trace.data.extras import ExtraIssue, PolicySpan, SamplingMask, TopTokens
    from rollout_trace.data.model import (
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
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.errors import DriftError, ExportError, FormatError, RolloutTraceError, WriteError
    from rollout_trace.file.annotate import annotate
    from rollout_trace.file.merge import MergeReport, merge
    from rollout_trace.file.reader import read
    from rollout_trace.file.score import ScoreReport, ascore, score
    from rollout_trace.file.writer import JSONLWriter
    from rollout_trace.guard import Stats, stats
    from rollout_trace.integration.installed import Integration, integrations
    from rollout_trace.process.environment import child_environment
    from rollout_trace.process.instrument import Instrumentation, instrument
    from rollout_trace.record.context import current, propagate, reward, trajectory
    from rollout_trace.record.frames import tool_run
    from rollout_trace.record.place import orphans
    from rollout_trace.record.provenance import environment, file_sha256
    from rollout_trace.record.recording import recording
    from rollout_trace.record.recovery import Recovered, recover
    from rollout_trace.record.recovery_output import RecoveryReport
    from rollout_trace.train.checks import Finding
    from rollout_trace.train.drift import Drift, drift
    from rollout_trace.train.evaluation import Comparison, compare, pass_at_k, pass_hat_k
    from rollout_trace.train.groups import Group, groups, run_advantages
    from rollout_trace.train.retokenize import RetokenizeReport
    from rollout_trace.train.selection import SequenceOptions
    from rollout_trace.train.sequence import Placeholder, Sequence, SequenceReport, Sequences
    from rollout_trace.wire.engine import Engine

# Names are imported on first use: agents start fast, and a script that only exports does not import the recorder.
_HOMES = {
    "rollout_trace.clients.anthropic": ("wrap_anthropic",),
    "rollout_trace.clients.common": ("bind", "unwrap"),
    "rollout_trace.clients.google": ("wrap_google",),
    "rollout_trace.clients.openai": ("wrap_openai",),
    "rollout_trace.clients.tinker": ("wrap_tinker",),
    "rollout_trace.clients.transformers": ("wrap_transformers",),
    "rollout_trace.clients.vllm": ("wrap_vllm",),
    "rollout_trace.collection.collect": ("acollect", "collect"),
    "rollout_trace.collection.executor": ("Executor",),
    "rollout_trace.collection.job": ("Job", "Outcome", "RolloutTimeout", "WorkerLost"),
    "rollout_trace.collection.processes": ("ProcessExecutor",),
    "rollout_trace.collection.snapshot": ("Progress",),
    "rollout_trace.collection.ray_executor": ("RayExecutor",),
    "rollout_trace.collection.rollout": ("Rollout",),
    "rollout_trace.collection.facts": ("CallTotals",),
    "rollout_trace.collection.summary": ("CollectSummary",),
    "rollout_trace.collection.totals": ("PassRate", "Percentiles"),
    "rollout_trace.train.evaluation": ("Comparison", "compare", "pass_at_k", "pass_hat_k"),
    "rollout_trace.record.context": ("current", "propagate", "reward", "trajectory"),
    "rollout_trace.wire.engine": ("Engine",),
    "rollout_trace.data.costs": ("Price", "PriceTable"),
    "rollout_trace.train.drift": ("Drift", "drift"),
    "rollout_trace.errors": ("DriftError", "ExportError", "FormatError", "RolloutTraceError", "WriteError"),
    "rollout_trace.file.reader": ("read",),
    "rollout_trace.file.writer": ("JSONLWriter",),
    "rollout_trace.file.annotate": ("annotate",),
    "rollout_trace.file.merge": ("MergeReport", "merge"),
    "rollout_trace.file.score": ("ScoreReport", "ascore", "score"),
    "rollout_trace.train.checks": ("Finding",),
    "rollout_trace.train.groups": ("Group", "groups", "run_advantages"),
    "rollout_trace.guard": ("Stats", "stats"),
    "rollout_trace.integration.installed": ("Integration", "integrations"),
    "rollout_trace.record.place": ("orphans",),
    "rollout_trace.record.provenance": ("environment", "file_sha256"),
    "rollout_trace.data.extras": ("ExtraIssue", "PolicySpan", "SamplingMask", "TopTokens"),
    "rollout_trace.data.model": (
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
    "rollout_trace.clients.probe_report": ("ProbeReport",),
    "rollout_trace.clients.probe": ("probe",),
    "rollout_trace.process.environment": ("child_environment",),
    "rollout_trace.process.instrument": ("Instrumentation", "instrument"),
    "rollout_trace.record.recording": ("recording",),
    "rollout_trace.record.recovery": ("Recovered", "recover"),
    "rollout_trace.record.recovery_output": ("RecoveryReport",),
    "rollout_trace.train.retokenize": ("RetokenizeReport",),
    "rollout_trace.train.selection": ("SequenceOptions",),
    "rollout_trace.train.sequence": ("Placeholder", "Sequence", "SequenceReport", "Sequences"),
    "rollout_trace.record.frames": ("tool_run",),
    "rollout_trace.data.trajectory": ("Trajectory",),
}
_SUBMODULES = frozenset({"export", "frames", "importing", "integration", "testing", "wire"})
register("rollout_trace.file.encode", "encode")
register("rollout_trace.view.notebook", "group_html", "sequences_html", "step_html", "trajectory_html")
register("rollout_trace.view.terminal", "show")
if not TYPE_CHECKING:  # A type checker takes any name for one of a module that has a `__getattr__`.
    __getattr__, __dir__ = lazy_names(__name__, _HOMES, _SUBMODULES)


__all__ = [
    "Attempt",
    "CallTotals",
    "CollectSummary",
    "Comparison",
    "Completion",
    "Cost",
    "Drift",
    "DriftError",
    "Engine",
    "ErrorInfo",
    "Executor",
    "ExportError",
    "ExtraIssue",
    "Finding",
    "FormatError",
    "Group",
    "Instrumentation",
    "Integration",
    "JSONLWriter",
    "Job",
    "MergeReport",
    "Outcome",
    "PassRate",
    "Percentiles",
    "Placeholder",
    "PolicySpan",
    "Price",
    "PriceTable",
    "ProbeReport",
    "ProcessExecutor",
    "Progress",
    "RayExecutor",
    "Recovered",
    "RecoveryReport",
    "RetokenizeReport",
    "Rollout",
    "RolloutTimeout",
    "RolloutTraceError",
    "SamplingMask",
    "ScoreReport",
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
    "TopTokens",
    "Trajectory",
    "Usage",
    "WorkerLost",
    "WriteError",
    "__version__",
    "acollect",
    "annotate",
    "ascore",
    "bind",
    "child_environment",
    "collect",
    "compare",
    "current",
    "drift",
    "environment",
    "file_sha256",
    "groups",
    "instrument",
    "integrations",
    "merge",
    "orphans",
    "pass_at_k",
    "pass_hat_k",
    "probe",
    "propagate",
    "read",
    "recording",
    "recover",
    "reward",
    "run_advantages",
    "score",
    "stats",
    "tool_run",
    "trajectory",
    "unwrap",
    "wrap_anthropic",
    "wrap_google",
    "wrap_openai",
    "wrap_tinker",
    "wrap_transformers",
    "wrap_vllm",
]
