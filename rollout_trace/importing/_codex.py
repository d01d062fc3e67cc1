"""Sessions of Codex: the rollout files of its CLI."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from hashlib import blake2b
from typing import Any

from rollout_trace.data.model import ErrorInfo
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.file.plain import dumps
from rollout_trace.importing._codex_calls import Calls, is_context
from rollout_trace.importing.fields import Fields, OnError, is_whole
from rollout_trace.importing.imported import SESSIONS, Imported, ImportReport, Job, imported, session_lines
from rollout_trace.importing.inputs import Given, Input


def codex(path: Given, *, on_error: OnError = "raise", report: ImportReport | None = None) -> Imported:
    """Reads sessions of Codex: one trajectory for each session. A sub-agent has its own file, which names its parent.

    The consecutive items that the model wrote are one call; its usage is that of the next ``token_count``, or of its
    ``token_usage_record``. Prompts are reconstructed: the instructions, then the items before the call, or after a
    compaction those that replaced them. These files lack most sampling parameters, the tools of models that Codex does
    not know, token ids and logprobs. If a fork or a sub-agent copies or continues another imported session, that part
    becomes its prompt, not steps.

    Args:
        path: session files, or folders such as ``~/.codex/sessions``; or an open file.
        on_error: as for every importer, like ``report`` and the errors raised: see ``rollout_trace.importing``.
        report: as for every importer.
    """
    return imported("codex", path, SESSIONS, on_error, report, _sessions)


def _sessions(sources: list[Input], job: Job) -> Iterator[Trajectory]:
    known: dict[str, _Session] = {}
    roots: dict[str, str | None] = {}
    begins = _Begins()
    # By their names, which are times: a parent's file may stand in another folder than those of its sub-agents.
    for source in sorted(sources, key=lambda one: one.stem):
        session = _read(source, job, known, begins.of)
        if not session.digests:
            job.report.drop("files without a conversation")
            continue
        same = known.get(session.thread_id)
        if same is not None and session.is_begin_of(same):
            job.report.drop("files that hold a session of this import again")
            continue
        trajectory = session.trajectory()
        if _is_circle(session, known):
            trajectory.parent_id = session.parent_id = None
            job.report.note("sessions that are above themselves, cut off")
        parent = known.get(session.parent_id or "")
        if parent is not None:
            trajectory.parent_step_id = parent.caller_of(session)
        elif session.parent_id is not None:
            job.report.note("sub-agents and forks whose parent is not in this import")
        # The id of the outermost: the parent's file is named after an earlier time, and so comes first.
        trajectory.episode_id = roots.get(session.parent_id or "") or session.parent_id or trajectory.id
        roots[session.thread_id] = trajectory.episode_id
        session.forget()
        known.setdefault(session.thread_id, session)
        begins.sources[session.thread_id] = source
        yield trajectory


def _is_circle(session: _Session, known: dict[str, _Session]) -> bool:
    """Whether a session is above itself, by what the files have."""
    above = known.get(session.parent_id or "")
    while above is not None and above.parent_id != session.thread_id:
        above = known.get(above.parent_id or "")
    return above is not None


class _Begins:
    """Beginnings of sessions that others continue: read again when needed, instead of keeping conversations."""

    def __init__(self) -> None:
        self.sources: dict[str, Input] = {}
        self._asked: list[str] = []

    def of(self, thread_id: str, end: int) -> Calls | None:
        """The calls of a session in its lines before one; None where the session is not known."""
        source = self.sources.get(thread_id)
        if source is None or source.is_open_file or thread_id in self._asked:
            return None
        self._asked.append(thread_id)
        try:
            return _read(source, Job("codex", "skip", None), {}, self.of, end).calls
        finally:
            self._asked.pop()


def _read(
    source: Input,
    job: Job,
    known: dict[str, _Session],
    begin_of: Callable[[str, int], Calls | None],
    end: int | None = None,
) -> _Session:
    """A session; ``end``: of its lines those before this one."""
    session = _Session(source.stem, job, known, begin_of)
    for record in session_lines(source, job):
        ordinal = None if end is None else record.count("ordinal")
        if end is None or (ordinal is not None and ordinal < end):
            job.attempt(session.add, record)
    session.end()
    return session


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


class _Session:
    """The session in one file; ``known`` are those that were read before, by their ids.

    ``begin_of`` gives the calls of a session up to a line, for one that goes on from there; None where it is not known.
    """

    def __init__(
        self, name: str, job: Job, known: dict[str, _Session], begin_of: Callable[[str, int], Calls | None]
    ) -> None:
        self.thread_id = name
        self.parent_id: str | None = None
        self.digests: list[bytes] = []
        """Of each item, for forks that begin with them."""
        self._job, self._known, self._begin_of = job, known, begin_of
        self.calls = Calls(name, job)
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
        self._callers: list[tuple[str, str]] = []
        self._path: str | None = None

    def is_begin_of(self, other: _Session) -> bool:
        """Whether the other session has all items of this one, in the same places."""
        return self.digests == other.digests[: len(self.digests)]

    def add(self, record: Fields) -> None:
        """Adds a line."""
        kind = record.text("type")
        time = record.time("timestamp")
        self.calls.pass_time(time)
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
                self.calls.metadata.setdefault("copied_from", own)
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
        self.calls.agent = meta.text("agent_role") or meta.text("agent_nickname") or "codex"
        names = {"cli_version": "codex", "cwd": "cwd", "originator": "originator", "model_provider": "model_provider"}
        self.calls.set_environment(meta, names)
        if meta.get("git") is not None:
            self.calls.environment["git"] = meta.get("git")
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
        """Whether the session continues another known one without containing a copy of it."""
        base = meta.object("history_base")
        if not base:
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
            self.calls.status = "aborted"
        elif kind in ("task_complete", "turn_complete"):
            error = event.object("error")
            self.calls.status = "failed" if error else "completed"
            if error and not self._is_history:
                self.calls.fail(_error(error))
        elif kind in ("task_started", "turn_started"):
            self.calls.status = "unknown"
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
        self.calls.metadata["compactions"] = self.calls.metadata.get("compactions", 0) + 1
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
        if self.calls.metadata.get("copied_from") and not self._copied:
            self._job.report.note("sessions that may begin with steps of another one, which is not in this import")

    def trajectory(self) -> Trajectory:
        """The session."""
        if any(step.tools for step in self.calls.steps):
            self.calls.lacks = "sampling parameters"
        for run in self.calls.tool_runs:
            result = str(run.result)
            if run.step_id is not None and ("agent" in (run.name or "") or "task_name" in result):
                self._callers.append((result, run.step_id))
        self.calls.name, self.calls.parent = self.thread_id, self.parent_id
        return self.calls.trajectory()

    def forget(self) -> None:
        """Frees what other sessions do not need."""
        self.calls = Calls(self.thread_id, self._job)

    def caller_of(self, child: _Session) -> str | None:
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
