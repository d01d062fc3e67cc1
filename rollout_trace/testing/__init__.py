"""Tests of an agent: loopback model servers, a pytest plugin that replays what a model said, asserts on rollouts.

Public: what ``__all__`` lists, and ``normalize``. The modules are internal; ``pytest_plugin`` is loaded by pytest.
"""

from __future__ import annotations

from rollout_trace._lazy import lazy_names

TYPE_CHECKING = False  # Not from `typing`: pytest imports this package in every run, used or not.
if TYPE_CHECKING:
    from rollout_trace.clients.loopback.messages import RequestRecord
    from rollout_trace.clients.loopback.server import LoopbackServer
    from rollout_trace.data.exchange import Exchange

    from . import normalize as normalize
    from ._tool_runs import InferredToolRun
    from .conversations import by_content, by_conversation, when
    from .real_tokenizer import RealTokenizer
    from .recordings import load_exchanges, load_reports, pack_exchanges
    from .replay import ReplayServer
    from .rollout import RecordedRollout
    from .script import Answer, Fault, Reply, Script, ToolCall
    from .scripted import ScriptedServer
    from .strategies import trajectories
    from .tokenizer import ByteTokenizer
    from .traffic import Latency, RateLimit

_HOMES = {
    "rollout_trace.data.exchange": ("Exchange",),
    "rollout_trace.clients.loopback.messages": ("RequestRecord",),
    "rollout_trace.clients.loopback.server": ("LoopbackServer",),
    "rollout_trace.testing._tool_runs": ("InferredToolRun",),
    "rollout_trace.testing.recordings": ("load_exchanges", "load_reports", "pack_exchanges"),
    "rollout_trace.testing.replay": ("ReplayServer",),
    "rollout_trace.testing.rollout": ("RecordedRollout",),
    "rollout_trace.testing.real_tokenizer": ("RealTokenizer",),
    "rollout_trace.testing.conversations": ("by_content", "by_conversation", "when"),
    "rollout_trace.testing.script": ("Answer", "Fault", "Reply", "Script", "ToolCall"),
    "rollout_trace.testing.scripted": ("ScriptedServer",),
    "rollout_trace.testing.strategies": ("trajectories",),
    "rollout_trace.testing.tokenizer": ("ByteTokenizer",),
    "rollout_trace.testing.traffic": ("Latency", "RateLimit"),
}

__all__ = [
    "Answer",
    "ByteTokenizer",
    "Exchange",
    "Fault",
    "InferredToolRun",
    "Latency",
    "LoopbackServer",
    "RateLimit",
    "RealTokenizer",
    "RecordedRollout",
    "ReplayServer",
    "Reply",
    "RequestRecord",
    "Script",
    "ScriptedServer",
    "ToolCall",
    "by_content",
    "by_conversation",
    "load_exchanges",
    "load_reports",
    "pack_exchanges",
    "trajectories",
    "when",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES, submodules=("normalize",))
