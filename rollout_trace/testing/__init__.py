"""Loopback model servers for tests of an agent: one answers from a script, one replays recordings.

They need the standard library only; no SDK is imported.

Public: what ``__all__`` lists. The modules are internal.
"""

from __future__ import annotations

from ._messages import RequestRecord
from ._server import LoopbackServer
from .recordings import Exchange, load_exchanges, load_reports, pack_exchanges
from .replay import ReplayServer
from .script import Answer, Fault, Reply, Script, ToolCall
from .scripted import ScriptedServer
from .tokenizer import ByteTokenizer

__all__ = [
    "Answer",
    "ByteTokenizer",
    "Exchange",
    "Fault",
    "LoopbackServer",
    "ReplayServer",
    "Reply",
    "RequestRecord",
    "Script",
    "ScriptedServer",
    "ToolCall",
    "load_exchanges",
    "load_reports",
    "pack_exchanges",
]
