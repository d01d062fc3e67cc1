"""Sessions of Qwen Code."""

from __future__ import annotations

from typing import Any

from rollout_trace.data.model import Attempt, ErrorInfo
from rollout_trace.importing.conversation import Conversation, conversations, folder_of
from rollout_trace.importing.fields import Fields, OnError, nothing
from rollout_trace.importing.imported import SESSIONS, Imported, ImportReport, Job, imported, session_lines
from rollout_trace.importing.inputs import Given, Input
from rollout_trace.importing.steps import Point, Thread
from rollout_trace.wire.chat_messages import convert
from rollout_trace.wire.google_parts import Parts

_KINDS = ("user", "assistant", "tool_result", "system")


def qwen_code(path: Given, *, on_error: OnError = "raise", report: ImportReport | None = None) -> Imported:
    """Reads sessions of Qwen Code: one trajectory for each file.

    An answer is one step; its id, latency and error come from the telemetry beside it. Prompts are reconstructed from
    the messages before it. These files lack system prompts, reminders, tools, sampling parameters, token ids and
    logprobs.

    Args:
        path: session files, or folders such as ``~/.qwen/projects``; or an open file.
        on_error: as for every importer, like ``report`` and the errors raised: see ``rollout_trace.importing``.
        report: as for every importer.
    """
    return imported("qwen_code", path, SESSIONS, on_error, report, conversations(_Session))


class _Session:
    """One file. Lines name the one that they follow: a branch is begun where they go back."""

    def __init__(self, source: Input, job: Job) -> None:
        parent = folder_of(source, 1) if folder_of(source, 2) == "subagents" else None
        name, lacks = "qwen-code" if parent is None else "subagent", "system prompts, tools and sampling parameters"
        self.talk = Conversation(job, source.stem, "openai.chat", name, lacks, parent)
        self._report = job.report
        self._places: dict[str, Point] = {}
        self._told: Fields | None = None
        """The telemetry of the next answer."""
        for record in session_lines(source, job):
            job.attempt(self._add, record)

    def _add(self, record: Fields) -> None:
        kind = record.require_text("type")
        self.talk.pass_time(record.time("timestamp"))
        self.talk.set_environment(record, {"version": "qwen_code", "cwd": "cwd", "gitBranch": "git_branch"})
        if kind not in _KINDS:
            self._report.drop(f"lines of an unknown kind: {kind[:40]}")
            return
        above = self._places.get(record.name("parentUuid") or "")
        self.talk.thread = self.talk.thread if above is None else above.branch()
        if kind == "system":
            self._add_system(record)
        else:
            self._add_message(record, kind)
        self._places[record.name("uuid") or ""] = self.talk.thread.end()

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
        told, self._told = self._told or nothing(record.place), None
        read = Parts()
        read.add(parts, [None] * len(parts))
        completion = read.completion()
        for message in messages:
            message.pop("reasoning", None)  # It is not sent again.
        self.talk.answer(
            completion,
            messages,
            model=record.text("model"),
            response_id=told.name("response_id"),
            usage=record.object("usageMetadata").usage("qwen_code"),
            latency=told.milliseconds("duration_ms"),
            time_to_first_token=told.milliseconds("ttft_ms"),
        )
        self._report.miss("stop reasons")
        self.talk.status = "unknown" if completion.tool_calls else "completed"

    def _add_system(self, record: Fields) -> None:
        payload = record.object("systemPayload")
        event = payload.object("uiEvent")
        name = event.get("event.name")
        if event.get("subagent_name") is not None:
            self._report.note("calls of agents beside the conversation, of which there is a count alone")
        elif name == "qwen-code.api_response":
            self._told = event
        elif name == "qwen-code.api_error":
            status = event.count("status_code")
            kind, text = event.text("error_type") or "api_error", event.text("error_message") or ""
            error = ErrorInfo(type=kind, message=text, status=status)
            self.talk.fail(error, model=event.text("model"), attempts=(Attempt(status=status, error=error),))
        elif payload and record.get("subtype") == "chat_compression":
            contents = [one for one in payload.items("compressedHistory") or [] if isinstance(one, dict)]
            self.talk.thread = Thread([m for one in contents for m in convert("google.generate_content", (one,))])
            self._report.miss("calls that summed up compacted conversations")
        else:
            self._report.note("lines that are no part of a conversation")
