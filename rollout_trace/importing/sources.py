"""The sources: what each is, and which one a file is of."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any

from rollout_trace.errors import FormatError
from rollout_trace.file.lines import Damaged, NumberedLines
from rollout_trace.importing.fields import Problems
from rollout_trace.importing.imported import JSON, Imported
from rollout_trace.importing.inputs import Given, Input, documents, inputs_of

_ANY = (*JSON, ".eval", ".ndjson")
_LINES = 40
"""Lines of a file that are looked at, at most."""
_CLAUDE = frozenset({"user", "assistant", "system", "summary", "file-history-snapshot", "attachment"})
_CODEX = frozenset({"session_meta", "response_item", "event_msg", "turn_context"})


@dataclass(frozen=True)
class Source:
    """A tool whose files can be imported."""

    name: str
    what: str
    """What is read, as text for lists of sources."""
    lacks: str
    """What the source does not have."""

    @property
    def importer(self) -> Callable[..., Imported]:
        """The function of ``rollout_trace.importing``."""
        found: Callable[..., Imported] = getattr(import_module(f"rollout_trace.importing._{self.name}"), self.name)
        return found


_TABLE = (
    ("agent_lightning", "events, spans, triplets and rows of turns of Agent-lightning",
     "rewards that were filled in; of triplets: requests, usage, times"),
    ("art", "trajectories of OpenPipe ART", "of the older form: requests, prompt ids, usage, times"),
    ("atif", "ATIF 1.0 to 1.8, Harbor's trajectories", "requests; ids, logprobs of most agents"),
    ("claude_code", "sessions of Claude Code, and its stream-json",
     "ids, logprobs, latency, rewards; before 2.1.332 system prompt, tools, sampling"),
    ("codex", "sessions of the Codex CLI",
     "ids, logprobs, sampling, stop reasons, rewards; tools of models that it does not know"),
    ("gemini_cli", "sessions of Gemini CLI", "ids, logprobs, system prompt, tools, sampling, failed calls, rewards"),
    ("inspect", "logs of inspect_ai, .eval and .json", "ids, unless the logprobs name them"),
    ("kimi_code", "sessions of Kimi Code, wire.jsonl", "ids, logprobs, sampling, rewards"),
    ("otel", "spans: OpenTelemetry's GenAI, OpenInference", "rewards; ids, logprobs of most writers"),
    ("qwen_code", "sessions of Qwen Code", "ids, logprobs, system prompt, tools, sampling, rewards"),
    ("verifiers", "episodes of verifiers 0.4, traces.jsonl", "requests; four decimals of logprobs"),
)  # fmt: skip
SOURCES: Mapping[str, Source] = MappingProxyType({name: Source(name, what, lacks) for name, what, lacks in _TABLE})
"""The sources by their names."""


def detect(path: Given) -> str | None:
    """Detects the source of a file; None if its beginning does not show it, or if files have different sources.

    Args:
        path: as for the importers. All files of a folder or a list must have the same source.

    Raises:
        FileNotFoundError: there is nothing to read.
        OSError: a file cannot be read.
    """
    files = [one for one in inputs_of(path, _ANY) if not one.is_open_file and not one.path.endswith(".meta.json")]
    found = {_source_of(one) for one in files}
    return found.pop() if len(found) == 1 else None


def _source_of(source: Input) -> str | None:
    if source.begin(2) == b"PK":
        return "inspect" if source.path.endswith(".eval") else None
    return next((name for value in _first_values(source) if (name := _named(value)) is not None), None)


def _first_values(source: Input) -> list[dict[str, Any]]:
    """The objects of the first lines, or the one document."""
    found: list[dict[str, Any]] = []
    with source.opened() as file:
        for number, (_, line) in enumerate(NumberedLines(file, source.path)):
            if number >= _LINES or isinstance(line, Damaged):
                break
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                break
            if isinstance(value, dict):
                found.append(value)
    return found or _document(source)


def _document(source: Input) -> list[dict[str, Any]]:
    """The object of a file that is one document over many lines."""
    if os.path.isfile(source.path) and os.path.getsize(source.path) > 1 << 28:
        return []  # Too long to be read for this alone.
    try:
        return [next(documents(source, Problems("raise"))).values]
    except (FormatError, StopIteration):
        return []


def _named(value: dict[str, Any]) -> str | None:
    """The source whose files hold such an object; None where several could, or none does."""
    kind, keys = value.get("type"), value.keys()
    payload = value.get("payload")
    tests = {
        "atif": str(value.get("schema_version")).startswith("ATIF-v1."),
        "art": value.get("format") == "art.trajectories"
        or "messages_and_choices" in keys
        or isinstance(value.get("exchanges"), dict),
        "inspect": isinstance(value.get("eval"), dict) and "status" in keys,
        "otel": "resourceSpans" in keys,
        "verifiers": _is_episode(value),
        "codex": kind in _CODEX and isinstance(payload, dict) if isinstance(kind, str) else False,
        "gemini_cli": keys >= {"sessionId", "projectHash", "startTime"},
        "kimi_code": kind == "metadata" and keys >= {"protocol_version", "created_at"},
        "qwen_code": kind in _CLAUDE and _has_parts(value.get("message")) if isinstance(kind, str) else False,
        "agent_lightning": ("rollout_id" in keys and bool(keys & {"event_type", "attempt_id", "triplets"}))
        or keys >= {"instance_id", "prompt_ids", "gold_completion_ids"},
        "claude_code": isinstance(kind, str)
        and kind in _CLAUDE
        and payload is None
        and _is_message(value.get("message"))
        and bool(keys & {"sessionId", "uuid", "leafUuid", "session_id", "messageId"}),
    }
    found = [name for name, holds in tests.items() if holds]
    # A file of ours has a schema of its own.
    return found[0] if len(found) == 1 and "schema" not in keys else None


def _is_episode(value: dict[str, Any]) -> bool:
    traces = value.get("traces")
    first = traces[0] if isinstance(traces, list) and traces else value
    nodes = first.get("nodes") if isinstance(first, dict) else None
    # Graphs of many programs have nodes; those of verifiers have messages.
    return isinstance(nodes, list) and all(isinstance(one, dict) and "message" in one for one in nodes[:1])


def _has_parts(message: Any) -> bool:
    """Whether a line has a message of Qwen Code."""
    return isinstance(message, dict) and isinstance(message.get("parts"), list)


def _is_message(message: Any) -> bool:
    """Whether a line has no message, or one of Claude Code: Qwen Code's lines are alike, with ``parts`` in theirs."""
    return message is None or (isinstance(message, dict) and "content" in message)
