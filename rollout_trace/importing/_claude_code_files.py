"""Which files are one session of Claude Code: its own, and those of its sub-agents."""

from __future__ import annotations

import glob
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollout_trace.file.addresses import is_address
from rollout_trace.importing.inputs import Input, inputs_of

if TYPE_CHECKING:
    from rollout_trace.importing.inputs import Given

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
_BEGIN = 1 << 16
_TIME = re.compile(rb'"timestamp": ?"([0-9TZ:.+-]{1,40})"')


@dataclass
class SessionFiles:
    """The files of one session."""

    main: Input
    agents: list[Input] = field(default_factory=list)


def sessions_of(given: Given) -> list[SessionFiles]:
    """The sessions that an argument names. Raises as ``inputs_of``."""
    files = inputs_of(given, SUFFIXES)
    agents = [one for one in files if _is_agent(one.path)]
    sessions = {one.path: SessionFiles(one) for one in files if not _is_agent(one.path)}
    for path, session in sessions.items():
        if session.main.is_open_file or is_address(path):
            continue
        # Also where the session was named alone.
        inside = os.path.join(glob.escape(path.removesuffix(".jsonl")), "subagents", "**", "agent-*.jsonl")
        session.agents = [Input(one) for one in sorted(glob.glob(inside, recursive=True))]
        beside = os.path.join(glob.escape(os.path.dirname(path)), "agent-*.jsonl")
        name = os.path.basename(path).removesuffix(".jsonl").encode()
        session.agents += [Input(one) for one in sorted(glob.glob(beside)) if name in Input(one).begin(_BEGIN)]
    known = {one.path for session in sessions.values() for one in session.agents}
    # Without their session, sub-agents are sessions of their own.
    alone = [SessionFiles(one) for one in agents if one.path not in known]
    # What a fork or a resumed session copied is of the session that began, else ended, before it.
    return sorted([*sessions.values(), *alone], key=lambda one: _times(one.main))


def _times(source: Input) -> tuple[str, str]:
    """The times of a file's first and last line with one; empty where it is compressed, or not on this machine."""
    if source.is_open_file or is_address(source.path) or not source.path.endswith(".jsonl"):
        return "", ""
    with source.opened() as file:
        begin = _TIME.findall(file.read(_BEGIN))
        file.seek(max(0, os.path.getsize(source.path) - _BEGIN))
        end = _TIME.findall(file.read(_BEGIN))
    return (begin[0].decode() if begin else "", end[-1].decode() if end else "")


def _is_agent(path: str) -> bool:
    return path.replace("\\", "/").rpartition("/")[2].startswith("agent-")
