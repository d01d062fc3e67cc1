"""Sessions of Kimi Code."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from rollout_trace.data.model import Attempt, Completion, ErrorInfo, ToolCall
from rollout_trace.importing.conversation import Conversation, conversations, folder_of
from rollout_trace.importing.fields import Fields, OnError, time_of
from rollout_trace.importing.imported import Imported, ImportReport, Job, imported, session_lines
from rollout_trace.importing.inputs import Given, Input
from rollout_trace.importing.steps import Thread

SUFFIXES = ("wire.jsonl", "wire.jsonl.gz", "wire.jsonl.zst")
_MAIN = "main"
_BESIDE = (
    *("config.", "context.update_token_count", "cron.", "forked", "full_compaction.", "goal.", "interaction."),
    *("interruptionReminder.", "llm.request", "mcp.", "metadata", "permission.", "plan.", "plan_mode.", "plugin."),
    *("prompt.", "runtime.", "staleGuard.", "swarm_mode.enter", "task.", "token_counting.", "tools.", "tower_mode."),
    *("turn.", "usage.record"),
)
"""Begins of kinds of lines that no model reads."""


def kimi_code(path: Given, *, on_error: OnError = "raise", report: ImportReport | None = None) -> Imported:
    """Reads sessions of Kimi Code: one trajectory for each agent.

    Each step of the agent becomes a step, with the system prompt and tools that were sent. Prompts are reconstructed
    from the messages before it. These files lack the text that the program writes around tool results, some sampling
    parameters, token ids and logprobs.

    Args:
        path: ``wire.jsonl`` files, or folders such as ``~/.kimi-code/sessions``; or an open file.
        on_error: as for every importer, like ``report`` and the errors raised: see ``rollout_trace.importing``.
        report: as for every importer.
    """
    return imported("kimi_code", path, SUFFIXES, on_error, report, conversations(_Session))


class _Session:
    """One file: what one agent of a session was sent, and did."""

    def __init__(self, source: Input, job: Job) -> None:
        self._job = job
        # sessions/FOLDER/SESSION/agents/AGENT/wire.jsonl
        agent, own = folder_of(source, 1) or _MAIN, folder_of(source, 3) or source.stem
        name, parent = ("kimi-code", None) if agent == _MAIN else (agent, own)
        name_of_session = own if parent is None else f"{own}.{agent}"
        self.talk = Conversation(job, name_of_session, "openai.chat", name, "sampling parameters", parent)
        self._history = History(job)
        self._tools: dict[str, list[Any]] = {}
        self._asked: Fields | None = None
        """The request that has no answer yet."""
        self._parts: list[dict[str, Any]] = []
        self._calls: list[ToolCall] = []
        self._results: list[Fields] = []
        for record in session_lines(source, job):
            job.attempt(self._add, record)

    def _add(self, record: Fields) -> None:
        kind = record.require_text("type")
        self.talk.pass_time(_time(record))
        if kind == "profile.bind":
            self._bind(record)
        elif kind == "llm.tools_snapshot":
            self._tools[record.require_name("hash")] = [
                {"type": "function", "function": tool} for tool in record.items("tools") or ()
            ]
        elif kind == "context.append_message":
            self._add_message(record.require_object("message"))
        elif kind == "context.undo":
            self.talk.thread = self._history.undone(self.talk.thread, record.count("count") or 0)
        elif kind == "context.clear":
            self.talk.thread = self._history.cleared(self.talk.thread)
        elif kind == "swarm_mode.exit":
            self.talk.thread = self._history.without_swarm(self.talk.thread)
        elif kind == "context.apply_compaction":
            self.talk.thread = self._history.compacted(self.talk.thread, record)
            self._job.report.miss("calls that summed up compacted conversations")
        elif kind == "llm.request" and record.get("kind") != "compaction":
            self._ask(record)
        elif kind == "context.append_loop_event":
            self._add_event(record.require_object("event"))
        elif kind == "turn.ended":
            self._end(record)
        else:
            is_known = record.get("kind") == "event" or kind.startswith(_BESIDE)
            self._job.report.note("lines that are no part of a conversation", is_known)
            self._job.report.drop(f"lines of an unknown kind: {kind[:40]}", not is_known)

    def _add_message(self, given: Fields) -> None:
        message = _message(given)
        self._history.note(message, given.name("id"), given.mapping("origin") if given.get("origin") else {})
        self.talk.thread.add(message)

    def _bind(self, record: Fields) -> None:
        text, thread = record.text("systemPrompt"), self.talk.thread
        if text is not None:
            rest = [one for one in thread.items if one.get("role") != "system"]
            self.talk.thread = type(thread)([{"role": "system", "content": text}, *rest])
        folder = record.object("environmentDisclosure").text("cwd")
        if folder is not None:
            self.talk.environment["cwd"] = folder

    def _ask(self, record: Fields) -> None:
        """Notes a request. Says so where another number of messages was sent: a compaction, or lines of other kinds."""
        self._asked = record
        count = record.count("messageCount")
        known = sum(one.get("role") != "system" for one in self.talk.thread.items)
        what = "prompts of which the file has another number of messages than were sent"
        self._job.report.note(what, count is not None and count != known)

    def _add_event(self, event: Fields) -> None:
        kind = event.require_text("type")
        if kind == "step.begin":
            self._parts, self._calls, self._results = [], [], []
        elif kind == "content.part":
            self._parts.append(event.mapping("part"))
        elif kind == "tool.call":
            arguments = json.dumps(event.get("args"), ensure_ascii=False, separators=(",", ":"))
            self._calls.append(ToolCall(id=event.name("toolCallId"), name=event.text("name"), arguments=arguments))
        elif kind == "tool.result":
            self._results.append(event)
        elif kind == "step.end" and event.get("finishReason") != "error":
            self._answer(event)

    def _answer(self, event: Fields) -> None:
        texts = [str(one["text"]) for one in self._parts if isinstance(one.get("text"), str)]
        thoughts = [str(one["think"]) for one in self._parts if isinstance(one.get("think"), str)]
        content = "".join(texts) or None
        completion = Completion(content=content, reasoning="".join(thoughts) or None, tool_calls=tuple(self._calls))
        calls = [
            {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
            for one in self._calls
        ]
        message = {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}
        first, rest = event.number("llmFirstTokenLatencyMs"), event.number("llmStreamDurationMs")
        self.talk.answer(
            completion,
            [message],
            **self._request(),
            response_id=event.name("messageId"),
            finish_reason=event.text("rawFinishReason") or event.text("finishReason"),
            usage=event.object("usage").usage("kimi_code"),
            time_to_first_token=None if first is None else first / 1e3,
            latency=None if first is None or rest is None else (first + rest) / 1e3,
        )
        for result in self._results:
            given, call_id = result.object("result"), result.name("toolCallId")
            output, is_error = given.get("output"), given.flag("isError") is True
            self.talk.run(call_id, output, is_error=is_error, duration=given.milliseconds("durationMs"))
            self.talk.thread.add({"role": "tool", "tool_call_id": call_id, "content": output})
        self._asked = None

    def _request(self) -> dict[str, Any]:
        """What is known of the request."""
        asked = self._asked
        if asked is None:
            return {}
        tools = self._tools.get(asked.name("toolsHash") or "")
        return {"model": asked.text("model"), "tools": tools, "started_at": _time(asked)}

    def _end(self, record: Fields) -> None:
        reason, error = record.text("reason"), record.object("error")
        self.talk.status = {"completed": "completed", "failed": "failed"}.get(reason or "", "aborted")
        if error and self._asked is not None:
            status = error.object("details").count("statusCode")
            found = ErrorInfo(
                type=error.text("name") or error.text("code") or "error",
                message=error.text("message") or "",
                code=error.text("code"),
                status=status,
            )
            self.talk.fail(found, **self._request(), attempts=(Attempt(status=status, error=found),))
        self._asked = None


def _time(record: Fields) -> datetime | None:
    return time_of(record.milliseconds("time"))


def _message(message: Fields) -> dict[str, Any]:
    content = message.get("content")
    part = content[0] if isinstance(content, list) and len(content) == 1 else None
    if isinstance(part, dict) and part.keys() == {"type", "text"}:
        content = part["text"]
    return {"role": message.require_text("role"), "content": content}


_SLASH = frozenset({"skill_activation", "plugin_command"})


class History:
    """Where each message of a conversation is from, and what the session's lines make of them.

    Messages are told apart by what they are, not by their texts: two may be equal.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._facts: dict[int, tuple[dict[str, Any], str | None, dict[str, Any]]] = {}
        """Of each message with an origin: itself, its id and the origin."""

    def note(self, message: dict[str, Any], name: str | None, origin: dict[str, Any]) -> None:
        """Remembers where a message is from."""
        self._facts[id(message)] = message, name, origin

    def undone(self, thread: Thread, turns: int) -> Thread:
        """The conversation without its last turns of the user; as it was where it has fewer."""
        items, cut, left = thread.items, len(thread.items), turns
        for at in range(len(items) - 1, -1, -1):
            kind = self._origin(items[at]).get("kind")
            if kind == "compaction_summary":
                break
            if left and self._is_of_user(items[at]):
                left, cut = left - 1, at
                while cut and self._is_added_to(items[cut - 1], items[at]):
                    cut -= 1
        return thread.fork(cut) if turns > 0 and not left else thread

    def cleared(self, thread: Thread) -> Thread:
        """The conversation without its messages: the system prompt stays."""
        return Thread(_system(thread))

    def without_swarm(self, thread: Thread) -> Thread:
        """The conversation without the reminder of a mode, where nothing came behind it."""
        last = self._origin(thread.items[-1]) if thread.items else {}
        is_reminder = last.get("kind") == "injection" and last.get("variant") == "swarm_mode"
        return thread.fork(len(thread.items) - 1) if is_reminder else thread

    def compacted(self, thread: Thread, record: Fields) -> Thread:
        """The conversation with a summary: of older sessions in front of the rest, else behind the user's messages."""
        first = _system(thread)
        rest, kept = thread.items[len(first) :], record.count("keptUserMessageCount")
        summary = self._summary(record)
        if record.get("legacyTail") is True or kept is None:
            count = record.count("compactedCount")
            count = record.count("count") if count is None else count
            return Thread([*first, summary, *rest[len(rest) if count is None else count :]])
        users = [one for one in rest if self._is_of_user(one)]
        head = record.count("keptHeadUserMessageCount")
        self._job.report.note("compactions that shortened messages of the user, which are whole here", head is not None)
        tail = kept - (head or 0)
        return Thread([*first, *users[: head or 0], *users[max(0, len(users) - tail) :], summary])

    def _summary(self, record: Fields) -> dict[str, Any]:
        given = record.get("contextSummary") or record.get("summary")
        content = given.get("content") if isinstance(given, dict) else given
        message = {"role": "user", "content": content}
        self.note(message, None, {"kind": "compaction_summary"})
        return message

    def _origin(self, message: Any) -> dict[str, Any]:
        found = self._facts.get(id(message))
        return {} if found is None else found[2]

    def _is_of_user(self, message: Any) -> bool:
        origin = self._origin(message)
        kind = origin.get("kind")
        is_slash = kind in _SLASH and origin.get("trigger") == "user-slash"
        return message.get("role") == "user" and (kind in (None, "user") or is_slash)

    def _is_added_to(self, message: Any, prompt: Any) -> bool:
        """Whether Kimi Code put a message before a prompt, for it."""
        origin, name = self._origin(message), self._facts.get(id(prompt), (None, None, {}))[1]
        return origin.get("kind") == "injection" and name is not None and origin.get("ownerPromptId") == name


def _system(thread: Thread) -> list[Any]:
    return [one for one in thread.items[:1] if one.get("role") == "system"]
