"""The lines of a Claude Code transcript, by the conversation that they are of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_trace.importing._claude_code_requests import KINDS, Requests
from rollout_trace.importing._claude_code_values import Line, is_prompt, queued

if TYPE_CHECKING:
    from rollout_trace.importing.fields import Fields
    from rollout_trace.importing.report import ImportReport

_BESIDE = frozenset(
    {"file-history-snapshot", "queue-operation", "permission-mode", "mode", "last-prompt", "tag", "agent-name"}
    | {"agent-color", "agent-setting", "frame-link", "pr-link", "content-replacement", "stream_event", "progress"}
    | {"atis-latch", "tools-used", "cost-state"}
)
"""Kinds of lines that no model reads."""
_TITLES = {"summary": "summary", "ai-title": "aiTitle", "custom-title": "customTitle"}


class Lines:
    """The lines of one file: conversations by agent, the session's own under the empty name."""

    def __init__(self, report: ImportReport) -> None:
        self.chains: dict[str, list[Line]] = {}
        self.session_id: str | None = None
        self.facts: dict[str, Any] = {}
        """Titles and totals, for the metadata of the session."""
        self.environment: dict[str, Any] = {}
        self.attachments = 0
        """Lines of which it is not known what the model read, unless the requests are there."""
        self.requests = Requests(report)
        self._report = report
        self._uuids: set[str] = set()
        self._chain_of: dict[str, str] = {}
        self._last: dict[str, str] = {}

    def add(self, record: Fields) -> None:
        """Adds a line."""
        kind = record.require_text("type")
        self.session_id = self.session_id or record.name("sessionId") or record.name("session_id")
        if kind in ("user", "assistant", "system", "attachment") and not self._is_stream_head(record, kind):
            self._add_line(record, kind)
        elif kind in KINDS:
            self.requests.add(record, kind)
        elif kind in _TITLES:
            self.facts["title"] = record.text(_TITLES[kind]) or record.text("title")
        elif kind == "result":
            names = ("total_cost_usd", "num_turns", "duration_ms", "subtype", "usage", "modelUsage", "model_usage")
            self.facts["result"] = {name: record.get(name) for name in names if record.get(name) is not None}
        elif kind in _BESIDE or kind == "system":
            if kind == "progress" and record.name("uuid"):
                self._pass_on(record)
            self._report.note("lines that are no part of a conversation", kind != "system")
        else:
            self._report.drop(f"lines of an unknown kind: {kind[:40]}")

    def _is_stream_head(self, record: Fields, kind: str) -> bool:
        """Whether a line is the first of a printed stream: what the session can use."""
        if kind != "system" or record.get("subtype") != "init" or "parentUuid" in record.values:
            return False
        for name in ("cwd", "model", "tools", "claude_code_version"):
            if record.get(name) is not None:
                self.environment[name] = record.get(name)
        return True

    def _add_line(self, record: Fields, kind: str) -> None:
        uuid = record.name("uuid")
        if uuid is not None and uuid in self._uuids:
            self._report.note("lines that a file has twice, joined")
            return
        # One that no other file has.
        uuid = uuid or str(record.place)
        self._uuids.add(uuid)
        parent = record.name("parentUuid")
        chain = self._chain(record, parent)
        if "parentUuid" not in record.values:
            # A printed stream has no chain: each line follows the one before it of its agent.
            parent = self._last.get(chain)
        self._chain_of[uuid], self._last[chain] = chain, uuid
        message = record.require_object("message") if kind in ("user", "assistant") else None
        if message is not None and "parts" in message.values and "content" not in message.values:
            message.refuse("content", "a text or a list of blocks, and not the parts of Qwen Code's sessions")
        line = Line(record, kind, uuid, parent, record.time("timestamp"), message, record.text("agentName"))
        self.chains.setdefault(chain, []).append(line)
        if kind == "assistant":
            answered, is_error = record.name("requestRef"), record.flag("isApiErrorMessage")
            line.request = self.requests.answered(answered) if answered or is_error else None
            line.is_call = line.request is not None or self.requests.is_empty
        elif kind == "system" and record.get("subtype") == "api_error":
            error = record.object("error")
            self.requests.fail(record if error is None else error)
        elif is_prompt(line):
            self.requests.turn()
        else:
            self.attachments += kind == "attachment" and queued(line) is None

    def _pass_on(self, record: Fields) -> None:
        """A line that no model reads, but that others follow."""
        uuid = record.require_name("uuid")
        if uuid not in self._uuids:
            self._uuids.add(uuid)
            chain = self._chain(record, record.name("parentUuid"))
            self._chain_of[uuid] = chain
            if chain in self.chains:
                line = Line(record, "progress", uuid, record.name("parentUuid"), None, None)
                self.chains[chain].append(line)

    def _chain(self, record: Fields, parent: str | None) -> str:
        """The agent that a line is of; empty for the session's own."""
        tool_use = record.name("parent_tool_use_id")
        if tool_use is not None:
            return tool_use
        if not record.flag("isSidechain"):
            return ""
        own = record.name("agentId")
        if own is not None:
            return own
        known = self._chain_of.get(parent or "")
        # Releases before 2.1 have no agent ids: a sub-agent is what follows one first line.
        return known if known else f"sidechain-{sum(one.startswith('sidechain-') for one in self.chains) + 1}"
