"""The chat models of browser-use, which make a client for each call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rollout_trace.testing import Reply, RequestRecord, ToolCall
from tests.agents.harness import EachAgent, each
from tests.agents.kinds import apis
from tests.agents.script import ADDEND, final, has_result, numbers


def action(request: Mapping[str, Any], record: RequestRecord) -> Reply:
    """An action as structured output: text in a schema, or for Anthropic the arguments of a tool; then the answer."""
    number = numbers(record)
    if has_result(record):
        return Reply(final(number))
    chosen = json.dumps({"a": number, "b": ADDEND})
    if "tools" in request:
        return Reply(tool_calls=[ToolCall(request["tools"][0]["name"], chosen)])
    return Reply(chosen)


@each(
    *apis("browser_use_chat", {"openai": "openai.chat", "anthropic": "anthropic.messages"}, streams=False, model=action)
)
class TestAgents(EachAgent):
    """Recorded, unmodified."""
