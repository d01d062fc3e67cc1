"""Records the requests an agent sends to its language model and the answers, token for token, in-process."""

from __future__ import annotations

from rollout_trace._lazy import lazy_names, register
from rollout_trace._version import __version__ as __version__

TYPE_CHECKING = False  # Not from `typing`: importing that takes longer than the rest of the package.
if TYPE_CHECKING:
    from rollout_trace.clients import ProbeReport as ProbeReport
    from rollout_trace.clients.google import wrap_google as wrap_google
    from rollout_trace.clients.probe import probe as probe
    from rollout_trace.clients.sdks import bind as bind
    from rollout_trace.clients.sdks import unwrap as unwrap
    from rollout_trace.clients.sdks import wrap_anthropic as wrap_anthropic
    from rollout_trace.clients.sdks import wrap_openai as wrap_openai
    from rollout_trace.clients.tinker import wrap_tinker as wrap_tinker
    from rollout_trace.clients.transformers import wrap_transformers as wrap_transformers
    from rollout_trace.clients.vllm import wrap_vllm as wrap_vllm
    from rollout_trace.collection import CallTotals as CallTotals
    from rollout_trace.collection import CollectSummary as CollectSummary
    from rollout_trace.collection import Executor as Executor
    from rollout_trace.collection import Job as Job
    from rollout_trace.collection import Outcome as Outcome
    from rollout_trace.collection import PassRate as PassRate
    from rollout_trace.collection import Percentiles as Percentiles
    from rollout_trace.collection import Progress as Progress
    from rollout_trace.collection import Rollouts as Rollouts
    from rollout_trace.collection.collect import acollect as acollect
    from rollout_trace.collection.collect import collect as collect
    from rollout_trace.collection.job import RolloutTimeout as RolloutTimeout
    from rollout_trace.collection.job import WorkerLost as WorkerLost
    from rollout_trace.collection.logs import Rollout as Rollout
    from rollout_trace.collection.processes import ProcessExecutor as ProcessExecutor
    from rollout_trace.collection.ray_executor import RayExecutor as RayExecutor
    from rollout_trace.collection.rollouts import rollouts as rollouts
    from rollout_trace.data import Attempt as Attempt
    from rollout_trace.data import ErrorInfo as ErrorInfo
    from rollout_trace.data import ExactTurn as ExactTurn
    from rollout_trace.data import ExtraIssue as ExtraIssue
    from rollout_trace.data import PolicySpan as PolicySpan
    from rollout_trace.data import SamplingMask as SamplingMask
    from rollout_trace.data import TokenIssue as TokenIssue
    from rollout_trace.data import TopTokens as TopTokens
    from rollout_trace.data.costs import Price as Price
    from rollout_trace.data.costs import PriceTable as PriceTable
    from rollout_trace.data.model import Completion as Completion
    from rollout_trace.data.model import Cost as Cost
    from rollout_trace.data.model import Step as Step
    from rollout_trace.data.model import Task as Task
    from rollout_trace.data.model import ToolCall as ToolCall
    from rollout_trace.data.model import ToolRun as ToolRun
    from rollout_trace.data.model import Usage as Usage
    from rollout_trace.data.trajectory import Trajectory as Trajectory
    from rollout_trace.errors import DriftError as DriftError
    from rollout_trace.errors import ExportError as ExportError
    from rollout_trace.errors import ForkDifference as ForkDifference
    from rollout_trace.errors import FormatError as FormatError
    from rollout_trace.errors import RolloutTraceError as RolloutTraceError
    from rollout_trace.errors import WriteError as WriteError
    from rollout_trace.file import MergeReport as MergeReport
    from rollout_trace.file import ScoreReport as ScoreReport
    from rollout_trace.file.annotate import annotate as annotate
    from rollout_trace.file.merge import merge as merge
    from rollout_trace.file.reader import read as read
    from rollout_trace.file.score import ascore as ascore
    from rollout_trace.file.score import score as score
    from rollout_trace.file.writer import JSONLWriter as JSONLWriter
    from rollout_trace.guard import stats as stats
    from rollout_trace.integration import Integration as Integration
    from rollout_trace.integration.installed import integrations as integrations
    from rollout_trace.process import Instrumentation as Instrumentation
    from rollout_trace.process.children import child_environment as child_environment
    from rollout_trace.process.hosted import run_program as run_program
    from rollout_trace.process.instrument import instrument as instrument
    from rollout_trace.record import Recovered as Recovered
    from rollout_trace.record import RecoveryReport as RecoveryReport
    from rollout_trace.record import Stats as Stats
    from rollout_trace.record.context import current as current
    from rollout_trace.record.context import propagate as propagate
    from rollout_trace.record.context import reward as reward
    from rollout_trace.record.context import trajectory as trajectory
    from rollout_trace.record.frames import tool_run as tool_run
    from rollout_trace.record.provenance import environment as environment
    from rollout_trace.record.provenance import file_sha256 as file_sha256
    from rollout_trace.record.recording import recording as recording
    from rollout_trace.record.recovery import recover as recover
    from rollout_trace.record.scope import orphans as orphans
    from rollout_trace.testing.fork import fork as fork
    from rollout_trace.testing.fork import recorded_tool as recorded_tool
    from rollout_trace.train import Comparison as Comparison
    from rollout_trace.train import Drift as Drift
    from rollout_trace.train import Finding as Finding
    from rollout_trace.train import Group as Group
    from rollout_trace.train import Placeholder as Placeholder
    from rollout_trace.train import RetokenizeReport as RetokenizeReport
    from rollout_trace.train import SequenceOptions as SequenceOptions
    from rollout_trace.train import SequenceReport as SequenceReport
    from rollout_trace.train import Sequences as Sequences
    from rollout_trace.train.drift import drift as drift
    from rollout_trace.train.evaluation import compare as compare
    from rollout_trace.train.evaluation import pass_at_k as pass_at_k
    from rollout_trace.train.evaluation import pass_hat_k as pass_hat_k
    from rollout_trace.train.groups import groups as groups
    from rollout_trace.train.groups import run_advantages as run_advantages
    from rollout_trace.train.mismatch import mismatch as mismatch
    from rollout_trace.train.sequence import Sequence as Sequence
    from rollout_trace.train.trainer_report import trainer_report as trainer_report
    from rollout_trace.wire.engine import Engine as Engine

# Names are imported on first use: agents start fast, and a script that only exports does not import the recorder.
_HOMES = {
    "rollout_trace.clients.sdks": ("bind", "unwrap", "wrap_anthropic", "wrap_openai"),
    "rollout_trace.clients.google": ("wrap_google",),
    "rollout_trace.clients.tinker": ("wrap_tinker",),
    "rollout_trace.clients.transformers": ("wrap_transformers",),
    "rollout_trace.clients.vllm": ("wrap_vllm",),
    "rollout_trace.collection.collect": ("acollect", "collect"),
    "rollout_trace.collection.job": ("RolloutTimeout", "WorkerLost"),
    "rollout_trace.collection.processes": ("ProcessExecutor",),
    "rollout_trace.collection.ray_executor": ("RayExecutor",),
    "rollout_trace.collection.rollouts": ("rollouts",),
    "rollout_trace.collection.logs": ("Rollout",),
    "rollout_trace.train.evaluation": ("compare", "pass_at_k", "pass_hat_k"),
    "rollout_trace.record.context": ("current", "propagate", "reward", "trajectory"),
    "rollout_trace.wire.engine": ("Engine",),
    "rollout_trace.data.costs": ("Price", "PriceTable"),
    "rollout_trace.train.drift": ("drift",),
    "rollout_trace.errors": (
        "DriftError",
        "ExportError",
        "ForkDifference",
        "FormatError",
        "RolloutTraceError",
        "WriteError",
    ),
    "rollout_trace.file.reader": ("read",),
    "rollout_trace.file.writer": ("JSONLWriter",),
    "rollout_trace.file.annotate": ("annotate",),
    "rollout_trace.file.merge": ("merge",),
    "rollout_trace.file.score": ("ascore", "score"),
    "rollout_trace.testing.fork": ("fork", "recorded_tool"),
    "rollout_trace.train.groups": ("groups", "run_advantages"),
    "rollout_trace.guard": ("stats",),
    "rollout_trace.integration.installed": ("integrations",),
    "rollout_trace.record.scope": ("orphans",),
    "rollout_trace.record.provenance": ("environment", "file_sha256"),
    "rollout_trace.data.model": ("Completion", "Cost", "Step", "Task", "ToolCall", "ToolRun", "Usage"),
    "rollout_trace.clients.probe": ("probe",),
    "rollout_trace.process.children": ("child_environment",),
    "rollout_trace.process.hosted": ("run_program",),
    "rollout_trace.process.instrument": ("instrument",),
    "rollout_trace.record.recording": ("recording",),
    "rollout_trace.record.recovery": ("recover",),
    "rollout_trace.train.mismatch": ("mismatch",),
    "rollout_trace.train.sequence": ("Sequence",),
    "rollout_trace.train.trainer_report": ("trainer_report",),
    "rollout_trace.record.frames": ("tool_run",),
    "rollout_trace.data.trajectory": ("Trajectory",),
}
# Earlier places of types that their rooms offer: they go on to work, and `__all__` does not list them.
_EARLIER = {
    "rollout_trace.clients": ("ProbeReport",),
    "rollout_trace.collection": (
        "CallTotals",
        "CollectSummary",
        "Executor",
        "Job",
        "Outcome",
        "PassRate",
        "Percentiles",
        "Progress",
        "Rollouts",
    ),
    "rollout_trace.data": (
        "Attempt",
        "ErrorInfo",
        "ExactTurn",
        "ExtraIssue",
        "PolicySpan",
        "SamplingMask",
        "TokenIssue",
        "TopTokens",
    ),
    "rollout_trace.file": ("MergeReport", "ScoreReport"),
    "rollout_trace.integration": ("Integration",),
    "rollout_trace.process": ("Instrumentation",),
    "rollout_trace.record": ("Recovered", "RecoveryReport", "Stats"),
    "rollout_trace.train": (
        "Comparison",
        "Drift",
        "Finding",
        "Group",
        "Placeholder",
        "RetokenizeReport",
        "SequenceOptions",
        "SequenceReport",
        "Sequences",
    ),
}
_SUBMODULES = frozenset(
    {*(room.partition(".")[2] for room in _EARLIER), "export", "frames", "importing", "testing", "trainers", "wire"}
)
register("rollout_trace.file.encode", "encode")
register("rollout_trace.view.notebook", "group_html", "sequences_html", "step_html", "trajectory_html")
register("rollout_trace.view.terminal", "show")
if not TYPE_CHECKING:  # A type checker takes any name for one of a module that has a `__getattr__`.
    __getattr__, __dir__ = lazy_names(__name__, {**_HOMES, **_EARLIER}, _SUBMODULES)


__all__ = sorted({name for names in _HOMES.values() for name in names} | {"__version__"})
