"""Sessions of Qwen Code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_trace.data.model import Attempt, ErrorInfo
from rollout_trace.importing.conversation import Conversation, conversations, folder_of
from rollout_trace.importing.imported import imported, session_lines
from rollout_trace.importing.steps import Thread
from rollout_trace.wire.chat_messages import convert
from rollout_trace.wire.google_parts import Parts

if TYPE_CHECKING:
    from rollout_trace.importing.fields import Fields, OnError
    from rollout_trace.importing.imported import Imported, Job
    from rollout_trace.importing.inputs import Given, Input
    from rollout_trace.importing.report import ImportReport

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
_KINDS = ("user", "assistant", "tool_result", "system")


def qwen_code(path: Given, *, on_error: OnError = "raise", report: ImportReport | None = None) -> Imported:
    """The trajectories of sessions, a file each.

    An answer is one step; its id, its latency and the error of a call that failed are those of the telemetry beside
    it. Prompts are put together from the messages before it: system prompts, reminders, tools and sampling parameters
    are not in these files, nor are token ids and logprobs.

    Args:
        path: session files, or folders such as ``~/.qwen/projects``; or an open file.
        on_error: ``raise`` at the first value that cannot be read; ``skip``: leave it out, and keep its error in
            ``skipped`` of the iterator. A last line without its end is left out, and counted, in both.
        report: counts what the source did not have, and what was left out.

    Raises:
        FileNotFoundError: there is nothing to read.
        ValueError: ``on_error`` has another value.
        FormatError: while iterating, unless skipped: something is no line of a session.
    """
    return imported("qwen_code", path, SUFFIXES, on_error, report, conversations(_Session))


class _Session:
    """One file. Lines name the one that they follow: a branch is begun where they go back."""

    def __init__(self, source: Input, job: Job) -> None:
        self._job = job
        parent = folder_of(source, 1) if folder_of(source, 2) == "subagents" else None
        name, lacks = "qwen-code" if parent is None else "subagent", "system prompts, tools and sampling parameters"
        self.talk = Conversation(job, source.stem, "openai.chat", name, lacks, parent)
        self._places: dict[str, tuple[Thread, int]] = {}
        self._told: Fields | None = None
        """The telemetry of the next answer."""
        for record in session_lines(source, job):
            job.attempt(self._add, record)

    def _add(self, record: Fields) -> None:
        kind = record.require_text("type")
        self.talk.pass_time(record.time("timestamp"))
        for name, ours in (("version", "qwen_code"), ("cwd", "cwd"), ("gitBranch", "git_branch")):
            if (value := record.text(name)) is not None:
                self.talk.environment.setdefault(ours, value)
        if kind not in _KINDS:
            self._job.report.drop(f"lines of an unknown kind: {kind[:40]}")
            return
        thread, length = self._places.get(
            record.name("parentUuid") or "", (self.talk.thread, len(self.talk.thread.items))
        )
        self.talk.thread = thread.after(length)
        if kind == "system":
            self._add_system(record)
        else:
            self._add_message(record, kind)
        self._places[record.name("uuid") or ""] = self.talk.thread, len(self.talk.thread.items)

    def _add_message(self, record: Fields, kind: str) -> None:
        message = record.require_object("message")
        parts = [part.values for part in message.objects("parts")]
        messages = convert("google.generate_content", ({"role": message.get("role"), "parts": parts},))
        if kind == "assistant":
            self._answer(record, parts, messages)
            return
        results = {one["tool_call_id"]: one for one in messages if isinstance(one.get("tool_call_id"), str)}
        for part in parts if kind == "tool_result" else ():
            given = part.get("functionResponse")
            response = given.get("response") if isinstance(given, dict) else None
            if isinstance(given, dict) and isinstance(response, dict):
                value, name = response.get("output", response.get("error")), given.get("id")
                self.talk.run(name if isinstance(name, str) else None, value, is_error="error" in response)
                if isinstance(value, str) and name in results:
                    # As it is sent: the text alone.
                    results[name]["content"] = value
        self.talk.status = "unknown"
        self.talk.thread.add(*messages)

    def _answer(self, record: Fields, parts: list[dict[str, Any]], messages: list[Any]) -> None:
        told, self._told = self._told, None
        usage, read = record.object("usageMetadata"), Parts()
        read.add(parts, [None] * len(parts))
        completion = read.completion()
        for message in messages:
            message.pop("reasoning", None)  # It is not sent again.
        latency = None if told is None else told.number("duration_ms")
        first = None if told is None else told.number("ttft_ms")
        self.talk.answer(
            completion,
            messages,
            model=record.text("model"),
            response_id=None if told is None else told.name("response_id"),
            usage=None if usage is None else usage.usage("qwen_code"),
            latency=None if latency is None else latency / 1e3,
            time_to_first_token=None if first is None else first / 1e3,
        )
        self._job.report.miss("stop reasons")
        self.talk.status = "unknown" if completion.tool_calls else "completed"

    def _add_system(self, record: Fields) -> None:
        payload = record.object("systemPayload")
        event = None if payload is None else payload.object("uiEvent")
        name = None if event is None else event.get("event.name")
        if event is not None and event.get("subagent_name") is not None:
            self._job.report.note("calls of agents beside the conversation, of which there is a count alone")
        elif event is not None and name == "qwen-code.api_response":
            self._told = event
        elif event is not None and name == "qwen-code.api_error":
            status = event.count("status_code")
            kind, text = event.text("error_type") or "api_error", event.text("error_message") or ""
            error = ErrorInfo(type=kind, message=text, status=status)
            self.talk.fail(error, model=event.text("model"), attempts=(Attempt(status=status, error=error),))
        elif payload is not None and record.get("subtype") == "chat_compression":
            items = payload.items("compressedHistory") or []
            contents = [one for one in items if isinstance(one, dict)]
            self.talk.thread = Thread([m for one in contents for m in convert("google.generate_content", (one,))])
            self._job.report.miss("calls that summed up compacted conversations")
        else:
            self._job.report.note("lines that are no part of a conversation")
