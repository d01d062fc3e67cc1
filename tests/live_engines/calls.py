"""The protocol matrix: one call for each protocol, way of delivery and feature, made with a real client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.live_engines.servers import MODEL

_PROMPT = "def naïve(x):\n    return"
_QUESTION = {"role": "user", "content": "Say something about naïve 🙂 cafés."}
_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Tokyo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
_FUNCTION = {"name": "get_weather", "description": "The weather of a city.", "parameters": _SCHEMA, "strict": True}


class Case(NamedTuple):
    """One call."""

    protocol: str
    feature: str
    streamed: bool
    seed: int | None = None
    """In the place of the usual one."""

    @property
    def name(self) -> str:
        return f"{self.protocol}-{self.feature}-{'streamed' if self.streamed else 'whole'}"


_SAMPLED = {"model": MODEL, "temperature": 1.0}
_CHAT = {**_SAMPLED, "seed": 7, "max_tokens": 24, "messages": [{"role": "system", "content": "Be terse."}, _QUESTION]}
_COMPLETIONS = {**_SAMPLED, "seed": 7, "max_tokens": 24, "prompt": _PROMPT}
_RESPONSES = {**_SAMPLED, "max_output_tokens": 24, "input": "Say something"}
# The SDK's newest releases take no temperature; the servers' own is 1 too.
_MESSAGES = {"model": MODEL, "max_tokens": 24, "messages": [_QUESTION]}

# By protocol and feature, the arguments of the SDK's `create`.
ARGUMENTS: dict[tuple[str, str], dict[str, Any]] = {
    ("openai.chat", "plain"): _CHAT,
    ("openai.chat", "two"): {**_CHAT, "n": 2},
    ("openai.chat", "alternatives"): {**_CHAT, "logprobs": True, "top_logprobs": 3},
    ("openai.chat", "long"): {**_CHAT, "max_tokens": 400},
    ("openai.chat", "stop"): {**_CHAT, "stop": ["e"]},
    ("openai.chat", "uncounted"): _CHAT,
    ("openai.chat", "tools"): {**_CHAT, "tools": [{"type": "function", "function": _FUNCTION}]},
    ("openai.chat", "forced_tool"): {
        **_CHAT,
        "max_tokens": 200,
        "tools": [{"type": "function", "function": _FUNCTION}],
        "tool_choice": "required",
    },
    ("openai.chat", "schema"): {
        **_CHAT,
        "max_tokens": 200,
        "response_format": {"type": "json_schema", "json_schema": {"name": "place", "schema": _SCHEMA}},
    },
    ("openai.completions", "plain"): _COMPLETIONS,
    ("openai.completions", "two"): {**_COMPLETIONS, "n": 2},
    ("openai.completions", "prompts"): {**_COMPLETIONS, "prompt": [_PROMPT, "import os\n"]},
    ("openai.completions", "uncounted"): _COMPLETIONS,
    ("openai.completions", "ids"): {**_COMPLETIONS, "prompt": [300, 301, 302, 303]},
    ("openai.responses", "plain"): _RESPONSES,
    ("openai.responses", "turns"): {
        **_RESPONSES,
        "input": [
            {"role": "user", "content": "Say something"},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "Something.", "annotations": []}],
            },
            {"role": "user", "content": "And more"},
        ],
    },
    ("openai.responses", "forced_tool"): {
        **_RESPONSES,
        "max_output_tokens": 200,
        "tools": [{"type": "function", **_FUNCTION}],
        "tool_choice": "required",
    },
    ("anthropic.messages", "plain"): _MESSAGES,
    ("anthropic.messages", "forced_tool"): {
        **_MESSAGES,
        "max_tokens": 200,
        "tools": [{"name": "get_weather", "description": "The weather of a city.", "input_schema": _SCHEMA}],
        "tool_choice": {"type": "any"},
    },
}
_ALL = [Case(*key, streamed) for key in ARGUMENTS for streamed in (False, True) if streamed or key[1] != "uncounted"]
CASES = [case for case in _ALL if case.protocol != "anthropic.messages"]
MESSAGES = [case for case in _ALL if case.protocol == "anthropic.messages"]


def make(client: Any, case: Case) -> None:
    """Makes the call with a client of the protocol's SDK, and reads a stream to its end."""
    arguments = dict(ARGUMENTS[case.protocol, case.feature])
    if case.seed is not None:
        arguments["seed"] = case.seed
    if case.streamed:
        arguments["stream"] = True
        if case.protocol in ("openai.chat", "openai.completions") and case.feature != "uncounted":
            arguments["stream_options"] = {"include_usage": True}
    answer = _CREATE[case.protocol](client)(**arguments)
    if case.streamed:
        with answer:
            assert list(answer)


_CREATE: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "openai.chat": lambda client: client.chat.completions.create,
    "openai.completions": lambda client: client.completions.create,
    "openai.responses": lambda client: client.responses.create,
    "anthropic.messages": lambda client: client.messages.create,
}
