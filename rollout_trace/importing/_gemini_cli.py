"""Sessions of Gemini CLI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_trace.importing.conversation import Conversation, conversations
from rollout_trace.importing.fields import Fields
from rollout_trace.importing.imported import imported, session_lines
from rollout_trace.importing.steps import Thread
from rollout_trace.wire.google_parts import Parts

if TYPE_CHECKING:
    from rollout_trace.importing.fields import OnError
    from rollout_trace.importing.imported import Imported, Job
    from rollout_trace.importing.inputs import Given, Input
    from rollout_trace.importing.report import ImportReport

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")


def gemini_cli(path: Given, *, on_error: OnError = "raise", report: ImportReport | None = None) -> Imported:
    """The trajectories of sessions, a file each.

    An answer is one step, whatever lines say of it later. Prompts are put together from the messages before it: system
    prompts, tools and sampling parameters are not in these files, nor are ids of responses, calls that failed, the
    router's calls, token ids and logprobs.

    Args:
        path: session files, or folders such as ``~/.gemini/tmp``; or an open file.
        on_error: ``raise`` at the first value that cannot be read; ``skip``: leave it out, and keep its error in
            ``skipped`` of the iterator. A last line without its end is left out, and counted, in both.
        report: counts what the source did not have, and what was left out.

    Raises:
        FileNotFoundError: there is nothing to read.
        ValueError: ``on_error`` has another value.
        FormatError: while iterating, unless skipped: something is no line of a session.
    """
    return imported("gemini_cli", path, SUFFIXES, on_error, report, conversations(_Session))


class _Session:
    """One file: records of messages, of which later ones with the same id say more, and lists that replace them all."""

    def __init__(self, source: Input, job: Job) -> None:
        self._job = job
        lacks = "system prompts, tools and sampling parameters"
        self.talk = Conversation(job, source.stem, "google.generate_content", "gemini-cli", lacks)
        self._said: dict[str, Fields] = {}
        """What is known in the end of each message."""
        self._done: set[str] = set()
        # The calls of tools of an answer come in a later line than the answer.
        lines = list(session_lines(source, job))
        for line in lines:
            job.attempt(self._collect, line)
        for line in lines:
            job.attempt(self._follow, line)

    def _collect(self, line: Fields) -> None:
        self.talk.pass_time(line.time("timestamp"))
        own = line.name("sessionId")
        if own is not None:
            self.talk.name = own
        name = line.name("id")
        if name is not None:
            known = self._said.get(name)
            self._said[name] = Fields({**({} if known is None else known.values), **line.values}, line.place)

    def _follow(self, line: Fields) -> None:
        change, name = line.object("$set"), line.name("id")
        if change is not None and change.get("messages") is not None:
            self.talk.thread = Thread()
            for message in change.objects("messages"):
                self.talk.thread.add(_content(message))
        elif name is not None and name not in self._done:
            self._done.add(name)
            self._add(self._said[name])
        elif name is None and change is None and "sessionId" not in line.values:
            self._job.report.drop("lines of an unknown kind")

    def _add(self, message: Fields) -> None:
        kind = message.require_text("type")
        if kind == "gemini" and message.get("model") is not None:
            self._answer(message)
        elif kind in ("user", "gemini"):
            self.talk.thread.add(_content(message))
            self.talk.status = "unknown"
        else:
            self._job.report.note("lines that are no part of a conversation")

    def _answer(self, message: Fields) -> None:
        content, read = _content(message), Parts()
        thoughts = [one.text("description") for one in message.objects("thoughts")]
        parts = [*({"text": text, "thought": True} for text in thoughts if text), *content["parts"]]
        read.add(parts, [None] * len(parts))
        completion, tokens = read.completion(), message.object("tokens")
        self.talk.answer(
            completion,
            [content],
            model=message.text("model"),
            usage=None if tokens is None else tokens.usage("gemini_cli"),
        )
        self._job.report.miss("stop reasons")
        self._job.report.miss("ids of responses")
        for call in message.objects("toolCalls"):
            given = [one for one in call.items("result") or () if isinstance(one, dict)]
            responses = [one.get("functionResponse") for one in given]
            values = [one.get("response") for one in responses if isinstance(one, dict)]
            value = values[0] if values and isinstance(values[0], dict) else {}
            result = value.get("output", value.get("error"))
            self.talk.run(call.name("id"), result, is_error=call.get("status") == "error" or "error" in value)
        self.talk.status = "unknown" if completion.tool_calls else "completed"


def _content(message: Fields) -> dict[str, Any]:
    """A message as a content of a request."""
    given = message.get("content")
    parts: list[dict[str, Any]] = [{"text": given}] if isinstance(given, str) and given else []
    if not isinstance(given, str) and given is not None:
        # Thoughts are not sent again.
        parts = [part.values for part in message.objects("content") if not part.get("thought")]
    calls = [part.get("functionCall") for part in parts]
    known = [call.get("id") for call in calls if isinstance(call, dict)]
    for call in message.objects("toolCalls"):
        named = {name: call.get(name) for name in ("id", "name", "args") if call.get(name) is not None}
        if named.get("id") not in known:
            parts.append({"functionCall": named})
    return {"role": "model" if message.get("type") == "gemini" else "user", "parts": parts}
