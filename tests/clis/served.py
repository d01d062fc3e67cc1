"""What a server was asked, as steps, beside those of a transcript."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rollout_trace.data.model import Step
from rollout_trace.testing import RequestRecord
from rollout_trace.wire import decode


@dataclass
class Served:
    """One request that came."""

    step: Step
    status: int | None
    is_whole: bool


def served(protocol: str, records: Iterable[RequestRecord]) -> list[Served]:
    """The requests that asked a model, without what no transcript has: accounts of the program, its billing line."""
    made = []
    for record in (one for one in records if one.method == "POST"):
        body = {name: value for name, value in record.json.items() if name not in ("metadata", "client_metadata")}
        if isinstance(body.get("system"), list):
            body["system"] = [one for one in body["system"] if "-billing-header" not in one.get("text", "")]
        kind = dict(record.response_headers).get("content-type", "")
        status = record.status or 200
        (step,) = decode(protocol, json.dumps(body).encode(), record.response_body, content_type=kind, status=status)
        made.append(Served(step, record.status, record.completed))
    return made


def is_summary(step: Step) -> bool:
    """Whether a call summed up a conversation."""
    return "summary" in json.dumps(list(step.messages or ())[-3:])


def plain(messages: Any) -> list[Any]:
    """Messages without what a program puts among them: system prompts, reminders, marks for the cache."""
    made: list[Any] = []
    for message in messages:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        kept = [
            {name: value.strip() if name == "text" else value for name, value in one.items() if name != "cache_control"}
            for one in blocks
            if not one.get("text", "").startswith("<system-reminder>")
        ]
        if message["role"] == "system" or not kept:
            continue
        if made and made[-1][0] == message["role"]:
            made[-1][1].extend(kept)
        else:
            made.append((message["role"], kept))
    return made
