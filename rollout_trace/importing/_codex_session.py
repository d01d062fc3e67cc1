"""One session of Codex: its lines in their order, as calls and tool runs."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from rollout_trace.data.model import ErrorInfo
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.file.plain import dumps
from rollout_trace.importing._codex_calls import Calls, is_context
from rollout_trace.importing.fields import Fields, is_whole

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from rollout_trace.importing.imported import Job

_ITEMS = frozenset(
    {"message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"}
    | {"local_shell_call", "web_search_call", "tool_search_call", "tool_search_output", "image_generation_call"}
    | {"agent_message", "additional_tools", "compaction", "context_compaction", "compaction_summary", "ghost_snapshot"}
)
_OUTPUTS = frozenset(
    {"reasoning", "function_call", "custom_tool_call", "local_shell_call", "web_search_call", "tool_search_call"}
    | {"image_generation_call"}
)
"""Items that the model writes, beside messages of the assistant."""
_NOT_SENT = frozenset({"internal_chat_message_metadata_passthrough"})
"""Fields of items that Codex keeps for itself."""


class Session:
    """What one file holds.

    Args:
        name: of the file.
        job: the import.
        known: sessions that were read before, by their ids.
        begin_of: the calls of a session up to a line, for one that goes on from there; None where it is not known.
    """

    def __init__(
        self, name: str, job: Job, known: dict[str, Session], begin_of: Callable[[str, int], Calls | None]
    ) -> None:
        self.thread_id = name
        self.parent_id: str | None = None
        self.digests: list[bytes] = []
        """Of each item, for forks that begin with them."""
        self._job, self._known, self._begin_of = job, known, begin_of
        self.calls = Calls(name, job)
        self._facts: dict[str, Any] = {}
        self._has_meta = False
        self._base: str | None = None
        """The instructions that the session began with."""
        self._history_end = 0
        """The line behind what a sub-agent was given of its parent's conversation."""
        self._is_history = False
        self._copied = 0
        self._copied_at = 0
        """Items of the other session that were passed in looking for copies."""
        self._copied_from: str | None = None
        self._is_copy = False
        self._items = 0
        self._status = "unknown"
        self._first: datetime | None = None
        self._last: datetime | None = None
        self._callers: list[tuple[str, str]] = []
        self._agent: str | None = None
        self._path: str | None = None

    @property
    def has_content(self) -> bool:
        """Whether there is anything of a conversation."""
        return self._items > 0

    def is_begin_of(self, other: Session) -> bool:
        """Whether the other session has all items of this one, in the same places."""
        return self.digests == other.digests[: len(self.digests)]

    def add(self, record: Fields) -> None:
        """Adds a line."""
        kind = record.text("type")
        time = record.time("timestamp")
        self._first, self._last = self._first or time, time or self._last
        ordinal = record.count("ordinal")
        self._is_history = ordinal is not None and ordinal < self._history_end
        if "payload" not in record.values:
            self._add_flat(record, kind)
            return
        payload = record.require_object("payload")
        if kind == "session_meta":
            self._add_meta(payload)
        elif kind == "response_item":
            self._add_item(payload, time)
        elif kind == "turn_context":
            self.calls.set_context(payload.text("model"), payload.text("effort"))
        elif kind == "event_msg":
            self._add_event(payload)
        elif kind == "token_usage_record":
            self.calls.add_usage_record(payload, is_copy=self._is_copy)
        elif kind == "compacted":
            self._add_compacted(payload)
        else:
            known = kind in ("world_state", "inter_agent_communication", "inter_agent_communication_metadata")
            self._job.report.note("lines that are no part of a conversation", known)
            self._job.report.drop(f"lines of an unknown kind: {str(kind)[:40]}", not known)

    def _add_flat(self, record: Fields, kind: str | None) -> None:
        """A line of the first releases: the head of a session, or an item as it is."""
        if kind in _ITEMS:
            self._add_item(record, record.time("timestamp"))
        elif kind is None and ("instructions" in record.values or "id" in record.values):
            self._add_meta(record)
        elif "record_type" in record.values:
            self._job.report.note("lines that are no part of a conversation")
        else:
            record.refuse("payload", "an object")

    def _add_meta(self, meta: Fields) -> None:
        own = meta.name("id")
        if self._has_meta:
            # A fork or a sub-agent begins with the lines of its parent, with their head.
            if own is not None and own != self.thread_id:
                self._facts.setdefault("copied_from", own)
                self.parent_id = self.parent_id or own
                self._copied_from = self._copied_from or own
                self._is_copy = own in self._known
            return
        self._has_meta = True
        self.thread_id = own or self.thread_id
        self.calls.name = self.thread_id
        spawned = _spawned_by(meta)
        self.parent_id = meta.name("parent_thread_id") or spawned or meta.name("forked_from_id")
        self.parent_id = None if self.parent_id == self.thread_id else self.parent_id
        # A session that was archived, or compressed, and then went on, has two files.
        self._copied_from = self.thread_id if self.thread_id in self._known else self.parent_id
        self._is_copy = self._copied_from in self._known
        self._agent = meta.text("agent_role") or meta.text("agent_nickname")
        names = {"cli_version": "codex", "cwd": "cwd", "originator": "originator", "model_provider": "model_provider"}
        found = {ours: value for name, ours in names.items() if (value := meta.text(name)) is not None}
        self._facts["environment"] = {**found, **({} if meta.get("git") is None else {"git": meta.get("git")})}
        given = meta.get("base_instructions") or meta.get("instructions")
        text = given.get("text") if isinstance(given, dict) else given
        self._history_end = meta.count("subagent_history_start_ordinal") or 0
        self._path = meta.text("agent_path")
        if not self._goes_on(meta) and isinstance(text, str):
            self._base = text
            self.calls.add_read({"role": "system", "content": text}, None)
        tools = meta.items("dynamic_tools")
        if tools:
            self.calls.tools = tools

    def _goes_on(self, meta: Fields) -> bool:
        """Whether the session goes on from another one, without a copy of it, and that one is known."""
        base = meta.object("history_base")
        if base is None:
            return False
        other, end = base.name("thread_id"), base.count("end_ordinal_exclusive")
        calls = None if other is None or end is None else self._begin_of(other, end)
        if calls is None:
            self._job.report.note("sessions that go on from another one, which is not in this import")
            return False
        self.calls.continue_from(calls)
        return True

    def _add_item(self, item: Fields, time: datetime | None) -> None:
        item = Fields(_sent(item.values), item.place, item.path)
        role = item.get("role")
        kind = "message" if isinstance(role, str) and item.get("type") is None else item.require_text("type")
        self._items += 1
        is_copy = self._matches_parent(item) or self._is_history
        if kind == "ghost_snapshot":
            self._job.report.drop(f"items of the kind {kind}")
        elif kind == "additional_tools":
            self.calls.set_tools(item.items("tools") or [])
        elif kind in _OUTPUTS or (kind == "message" and role == "assistant"):
            if is_copy:
                self._copied += 1
                self.calls.add_read(item.values, time)
            else:
                self.calls.add_written(item, time)
        elif kind not in _ITEMS:
            self._job.report.drop(f"items of an unknown kind: {kind[:40]}")
        else:
            if kind == "message" and role == "user" and not is_context(item.values):
                self.calls.begin_turn()
            if self._base is not None and role == "developer" and _text(item.values) == self._base:
                self.calls.drop_system()
            self.calls.add_read(item.values, time, output=item if kind.endswith("_output") and not is_copy else None)
        # What Codex put into the copy, for the new agent, does not end it.
        self._is_copy = is_copy or (self._is_copy and (role == "developer" or is_context(item.values)))

    def _matches_parent(self, item: Fields) -> bool:
        """Whether an item is one that the session copied from its parent: in the order there, but not all of them."""
        values = {name: value for name, value in item.values.items() if name not in ("timestamp", "id")}
        digest = blake2b(dumps(values), digest_size=8).digest()
        parent = self._known.get(self._copied_from or "")
        self.digests.append(digest)
        if not self._is_copy or parent is None or digest not in parent.digests[self._copied_at :]:
            return False
        self._copied_at = parent.digests.index(digest, self._copied_at) + 1
        return True

    def _add_event(self, event: Fields) -> None:
        kind = event.text("type")
        if kind == "token_count":
            self.calls.add_token_count(event, is_copy=self._is_copy)
        elif kind == "turn_aborted":
            self._status = "aborted"
        elif kind in ("task_complete", "turn_complete"):
            error = event.object("error")
            self._status = "completed" if error is None else "failed"
            if error is not None and not self._is_history:
                self.calls.fail(_error(error))
        elif kind in ("task_started", "turn_started"):
            self._status = "unknown"
        elif kind == "thread_rolled_back":
            turns = event.count("num_turns")
            self.calls.roll_back(turns if turns is not None else 1)
            self._job.report.note("turns that were rolled back: their calls stay, later prompts are without them")
        else:
            # The texts of messages stand in the items as well.
            self._job.report.note("events beside the items")

    def _add_compacted(self, payload: Fields) -> None:
        items = payload.items("replacement_history")
        replaced = [_sent(one) for one in items or () if isinstance(one, dict)]
        text = payload.text("message")
        if items is None:
            replaced = [] if text is None else [{"type": "message", "role": "user", "content": text}]
        self._facts["compactions"] = self._facts.get("compactions", 0) + 1
        is_here = self.calls.mark_summary(payload.name("compaction_response_id"), text or "")
        self._job.report.miss(
            "what asked for a summary, in calls that summed up a conversation: they are not trained on"
            if is_here
            else "calls that summed up compacted conversations"
        )
        for one in replaced:
            if one.get("type") == "additional_tools" and isinstance(one.get("tools"), list):
                self.calls.set_tools(one["tools"])
        self.calls.replace([one for one in replaced if one.get("type") != "additional_tools"])

    def end(self) -> None:
        """Called behind the last line."""
        self.calls.end()
        self._job.report.note("answers copied from another session, kept as items of prompts", self._copied)
        if self._facts.get("copied_from") and not self._copied:
            self._job.report.note("sessions that may begin with steps of another one, which is not in this import")

    def trajectory(self) -> Trajectory:
        """The session."""
        steps = self.calls.steps
        environment = self._facts.pop("environment", None)
        has_tools = any(step.tools for step in steps)
        self._job.report.miss("sampling parameters" if has_tools else "tools and sampling parameters", bool(steps))
        self._job.report.miss("rewards")
        for run in self.calls.tool_runs:
            result = str(run.result)
            if run.step_id is not None and ("agent" in (run.name or "") or "task_name" in result):
                self._callers.append((result, run.step_id))
        own = self._job.unique_id(self.thread_id)
        return Trajectory(
            id=own,
            name=self._agent or "codex",
            parent_id=self.parent_id,
            steps=steps,
            tool_runs=self.calls.tool_runs,
            status=self._status,
            started_at=self._first,
            ended_at=self._last,
            environment=environment or None,
            metadata={"imported": {"source": "codex"}, **self._facts},
        )

    def forget(self) -> None:
        """Frees what other sessions do not need."""
        self.calls = Calls(self.thread_id, self._job)

    def caller_of(self, child: Session) -> str | None:
        """The step that began a sub-agent: the one whose tool gave its id, or the path that it has among the agents."""
        names = [child.thread_id, *([] if child._path is None else [f'"{child._path}"'])]
        return next((step for text, step in self._callers if any(name in text for name in names)), None)


def _sent(item: dict[str, Any]) -> dict[str, Any]:
    """An item as it is sent."""
    return {name: value for name, value in item.items() if name not in _NOT_SENT}


def _text(item: dict[str, Any]) -> str | None:
    """The text of a message that has one part."""
    content = item.get("content")
    part = content[0] if isinstance(content, list) and len(content) == 1 else None
    text = part.get("text") if isinstance(part, dict) else None
    return text if isinstance(text, str) else None


def _error(error: Fields) -> ErrorInfo:
    """The error of a turn: the provider's, where its answer stands in the message."""
    message, info = error.text("message") or "", error.get("codex_error_info")
    try:
        told = json.loads(message)["error"]
        found = {name: told[name] for name in ("type", "message") if isinstance(told.get(name), str)}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        found = {}
    kind, facts = next(iter(info.items())) if isinstance(info, dict) and info else (info, None)
    status = facts.get("http_status_code") if isinstance(facts, dict) else None
    return ErrorInfo(
        type=found.get("type") or (kind if isinstance(kind, str) else "error"),
        message=found.get("message") or message,
        status=status if is_whole(status) else None,
    )


def _spawned_by(meta: Fields) -> str | None:
    source = meta.get("source")
    for name in ("subagent", "thread_spawn"):
        source = source.get(name) if isinstance(source, dict) else None
    found = source.get("parent_thread_id") if isinstance(source, dict) else None
    return found if isinstance(found, str) else None
