"""Sessions of Gemini CLI."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rollout_trace.data.trajectory import Trajectory
from rollout_trace.importing.conversation import Conversation, conversations, folder_of
from rollout_trace.importing.fields import Fields, OnError
from rollout_trace.importing.imported import JSON, Imported, ImportReport, Job, imported, session_lines
from rollout_trace.importing.inputs import Given, Input, documents, is_one_document
from rollout_trace.wire.google_parts import Parts


def gemini_cli(path: Given, *, on_error: OnError = "raise", report: ImportReport | None = None) -> Imported:
    """Reads sessions of Gemini CLI: one trajectory for each file. A sub-agent's trajectory names its parent.

    An answer is one step, even if later lines update it. Prompts are reconstructed from the messages before it. These
    files lack system prompts, tools, sampling parameters, response ids, failed calls, the router's calls, token ids and
    logprobs.

    Args:
        path: session files (JSON lines, or the single document of older releases), or folders such as
            ``~/.gemini/tmp``; or an open file.
        on_error: as for every importer, like ``report`` and the errors raised: see ``rollout_trace.importing``.
        report: as for every importer.
    """
    return imported("gemini_cli", path, JSON, on_error, report, _sessions)


def _sessions(sources: list[Input], job: Job) -> Iterator[Trajectory]:
    paths = {source.path for source in sources}
    # Gemini CLI copies a document that it goes on with, and leaves it.
    kept = [source for source in sources if f"{source.path}l" not in paths]
    job.report.drop("documents of sessions that go on in a file of lines", len(sources) - len(kept))
    yield from conversations(_Session)(kept, job)


def _lines(source: Input, job: Job) -> Iterator[Fields]:
    """The lines of a session; of one that is a document, its head and then its messages."""
    found = documents(source, job.problems) if is_one_document(source) else session_lines(source, job)
    for line in found:
        yield line
        if line.get("messages") is not None:
            yield from line.objects("messages")


class _Session:
    """One file: records of messages, of which later ones with the same id say more, lists that replace them all, and
    ids of messages that were taken back with all behind them."""

    def __init__(self, source: Input, job: Job) -> None:
        parent = folder_of(source, 1) if folder_of(source, 2) == "chats" else None
        name, lacks = "subagent" if parent else "gemini-cli", "system prompts, tools and sampling parameters"
        self.talk = Conversation(job, source.stem, "google.generate_content", name, lacks, parent)
        self._report = job.report
        self._said: dict[str, Fields] = {}
        """What is known in the end of each message."""
        self._done: set[str] = set()
        self._places: dict[str, int] = {}
        """How many messages the conversation had before each."""
        self._owed: list[dict[str, Any]] = []
        """Results of the last answer's tools: in documents no message has them."""
        # The calls of tools of an answer come in a later line than the answer.
        lines = list(_lines(source, job))
        for line in lines:
            job.attempt(self._collect, line)
        for line in lines:
            job.attempt(self._follow, line)

    def _collect(self, line: Fields) -> None:
        self.talk.pass_time(line.time("timestamp"))
        self.talk.name = line.name("sessionId") or self.talk.name
        name = line.name("id")
        if name is not None:
            known = self._said[name].values if name in self._said else {}
            self._said[name] = Fields({**known, **line.values}, line.place)

    def _follow(self, line: Fields) -> None:
        change, name, first = line.object("$set"), line.name("id"), line.name("$rewindTo")
        if change.get("messages") is not None:
            self._go_back(0)
            for message in change.objects("messages"):
                self._places[message.name("id") or ""] = len(self.talk.thread.items)
                self.talk.thread.add(_content(message))
        elif first is not None:
            # Gemini CLI too takes all messages back where it does not know the one.
            self._go_back(self._places.get(first, 0))
        elif name is not None and name not in self._done:
            self._done.add(name)
            self._add(self._said[name])
        elif name is None and not change and "sessionId" not in line.values:
            self._report.drop("lines of an unknown kind")

    def _go_back(self, length: int) -> None:
        self.talk.thread, self._owed = self.talk.thread.fork(length), []
        self._places = {name: at for name, at in self._places.items() if at < length}

    def _add(self, message: Fields) -> None:
        kind = message.require_text("type")
        if kind not in ("user", "gemini"):
            self._report.note("lines that are no part of a conversation")
            return
        given = message.get("content") if isinstance(message.get("content"), list) else ()
        if self._owed and not any(isinstance(part, dict) and "functionResponse" in part for part in given):
            self.talk.thread.add({"role": "user", "parts": self._owed})
        self._owed = []
        self._places[message.name("id") or ""] = len(self.talk.thread.items)
        if kind == "gemini" and message.get("model") is not None:
            self._answer(message)
        else:
            self.talk.thread.add(_content(message))
            self.talk.status = "unknown"

    def _answer(self, message: Fields) -> None:
        content, read = _content(message), Parts()
        thoughts = [one.text("description") for one in message.objects("thoughts")]
        parts = [*({"text": text, "thought": True} for text in thoughts if text), *content["parts"]]
        read.add(parts, [None] * len(parts))
        completion = read.completion()
        usage = message.object("tokens").usage("gemini_cli")
        self.talk.answer(completion, [content], model=message.text("model"), usage=usage)
        self._report.miss("stop reasons")
        self._report.miss("ids of responses")
        for call in message.objects("toolCalls"):
            given = [one for one in call.items("result") or () if isinstance(one, dict)]
            self._owed += given
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
