"""One session of Codex: its lines in their order, as calls and tool runs."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from rollout_trace.data.trajectory import Trajectory
from rollout_trace.file.plain import dumps
from rollout_trace.importing._codex_calls import Calls, is_context

if TYPE_CHECKING:
    from datetime import datetime

    from rollout_trace.importing.fields import Fields
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
_NO_MESSAGES = frozenset({"ghost_snapshot", "additional_tools"})


class Session:
    """What one file holds.

    Args:
        name: of the file.
        job: the import.
        known: sessions that were read before, by their ids.
    """

    def __init__(self, name: str, job: Job, known: dict[str, Session]) -> None:
        self.thread_id = name
        self.parent_id: str | None = None
        self.digests: list[bytes] = []
        """Of each item, for forks that begin with them."""
        self._job, self._known = job, known
        self._calls = Calls(name, job)
        self._facts: dict[str, Any] = {}
        self._has_meta = False
        self._copied = 0
        self._copied_from: str | None = None
        self._is_copy = False
        self._items = 0
        self._status = "unknown"
        self._first: datetime | None = None
        self._last: datetime | None = None
        self._callers: list[tuple[str, str]] = []
        self._agent: str | None = None

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
        if "payload" not in record.values:
            self._add_flat(record, kind)
            return
        payload = record.require_object("payload")
        if kind == "session_meta":
            self._add_meta(payload)
        elif kind == "response_item":
            self._add_item(payload, time)
        elif kind == "turn_context":
            self._calls.set_context(payload.text("model"), payload.text("effort"))
        elif kind == "event_msg":
            self._add_event(payload)
        elif kind == "token_usage_record":
            self._calls.add_usage_record(payload, is_copy=self._is_copy)
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
        self._calls.name = self.thread_id
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
        if isinstance(text, str):
            self._calls.add_read({"role": "system", "content": text}, None)
        tools = meta.items("dynamic_tools")
        if tools:
            self._calls.tools = tools

    def _add_item(self, item: Fields, time: datetime | None) -> None:
        role = item.get("role")
        kind = "message" if isinstance(role, str) and item.get("type") is None else item.require_text("type")
        self._items += 1
        is_copy = self._matches_parent(item)
        if kind in _NO_MESSAGES:
            self._job.report.drop(f"items of the kind {kind}")
        elif kind in _OUTPUTS or (kind == "message" and role == "assistant"):
            if is_copy:
                self._copied += 1
                self._calls.add_read(item.values, time)
            else:
                self._calls.add_written(item, time)
        elif kind not in _ITEMS:
            self._job.report.drop(f"items of an unknown kind: {kind[:40]}")
        else:
            if kind == "message" and role == "user" and not is_context(item.values):
                self._calls.begin_turn()
            self._calls.add_read(item.values, time, output=item if kind.endswith("_output") and not is_copy else None)
        self._is_copy = is_copy

    def _matches_parent(self, item: Fields) -> bool:
        """Whether an item is one that the session copied from its parent."""
        values = {name: value for name, value in item.values.items() if name not in ("timestamp", "id")}
        digest = blake2b(dumps(values), digest_size=8).digest()
        parent = self._known.get(self._copied_from or "")
        at = len(self.digests)
        self.digests.append(digest)
        return self._is_copy and parent is not None and at < len(parent.digests) and parent.digests[at] == digest

    def _add_event(self, event: Fields) -> None:
        kind = event.text("type")
        if kind == "token_count":
            self._calls.add_token_count(event, is_copy=self._is_copy)
        elif kind == "turn_aborted":
            self._status = "aborted"
        elif kind in ("task_complete", "turn_complete"):
            self._status = "completed"
        elif kind in ("task_started", "turn_started"):
            self._status = "unknown"
        elif kind == "thread_rolled_back":
            turns = event.count("num_turns")
            self._calls.roll_back(turns if turns is not None else 1)
            self._job.report.note("turns that were rolled back: their calls stay, later prompts are without them")
        else:
            # The texts of messages stand in the items as well.
            self._job.report.note("events beside the items")

    def _add_compacted(self, payload: Fields) -> None:
        items = payload.items("replacement_history")
        replaced = [one for one in items or () if isinstance(one, dict)]
        if items is None:
            text = payload.text("message")
            replaced = [] if text is None else [{"type": "message", "role": "user", "content": text}]
        self._calls.replace(replaced)
        self._facts["compactions"] = self._facts.get("compactions", 0) + 1
        self._job.report.miss("calls that summed up compacted conversations")

    def end(self) -> None:
        """Called behind the last line."""
        self._calls.end()
        self._job.report.note("answers copied from another session, kept as items of prompts", self._copied)
        if self._facts.get("copied_from") and not self._copied:
            self._job.report.note("sessions that may begin with steps of another one, which is not in this import")

    def trajectory(self) -> Trajectory:
        """The session."""
        steps = self._calls.steps
        environment = self._facts.pop("environment", None)
        self._job.report.miss("tools and sampling parameters", bool(steps))
        self._job.report.miss("rewards")
        for run in self._calls.tool_runs:
            if run.step_id is not None and run.name is not None and "agent" in run.name:
                self._callers.append((str(run.result), run.step_id))
        own = self._job.unique_id(self.thread_id)
        return Trajectory(
            id=own,
            name=self._agent or "codex",
            parent_id=self.parent_id,
            steps=steps,
            tool_runs=self._calls.tool_runs,
            status=self._status,
            started_at=self._first,
            ended_at=self._last,
            environment=environment or None,
            metadata={"imported": {"source": "codex"}, **self._facts},
        )

    def forget(self) -> None:
        """Frees what other sessions do not need."""
        self._calls = Calls(self.thread_id, self._job)

    def caller_of(self, thread_id: str) -> str | None:
        """The step that began a sub-agent: the one whose tool gave its id."""
        return next((step for text, step in self._callers if thread_id in text), None)


def _spawned_by(meta: Fields) -> str | None:
    source = meta.get("source")
    for name in ("subagent", "thread_spawn"):
        source = source.get(name) if isinstance(source, dict) else None
    found = source.get("parent_thread_id") if isinstance(source, dict) else None
    return found if isinstance(found, str) else None
