"""What an answer says, read from its bytes with `json` alone: what the steps of the call must say."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.live_engines.capture import Exchange

Object = dict[str, Any]


@dataclass
class Said:
    """One choice."""

    text: str = ""
    reasoning: str = ""
    calls: dict[int, list[str]] = field(default_factory=dict)
    """Name and arguments."""
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    prompt_ids: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    of_entries: bool = False
    """The ids are those beside llama-server's logprobs, which leave some tokens out."""
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[list[Object]] = field(default_factory=list)

    def call(self, index: int, name: str | None, arguments: str | None) -> None:
        """Adds to a call."""
        call = self.calls.setdefault(index, ["", ""])
        call[0] += name or ""
        call[1] += arguments or ""


@dataclass
class Served:
    """One answer."""

    id: str | None
    choices: dict[int, Said]
    sampled: int | None
    """Tokens, as the usage counts them. llama-server counts one choice."""

    @property
    def counted(self) -> bool:
        """Whether the usage confirms that all ids are there."""
        if len(self.choices) > 1 and any(said.of_entries for said in self.choices.values()):
            return False
        return self.sampled == sum(len(said.ids) for said in self.choices.values())


def served(exchange: Exchange) -> Served:
    """What an answer with status 200 says."""
    assert exchange.status == 200, exchange.response
    answer = _READERS[next(suffix for suffix in _READERS if exchange.path.endswith(suffix))](exchange.bodies)
    prompt = exchange.asked.get("prompt")
    if isinstance(prompt, list) and all(isinstance(item, int) for item in prompt):
        for said in answer.choices.values():
            said.prompt_ids = said.prompt_ids or prompt
    return answer


def _chat(bodies: list[Object]) -> Served:
    choices: dict[int, Said] = {}
    for body in bodies:
        for choice in body["choices"]:
            said = choices.setdefault(choice["index"], Said())
            message = choice.get("message") or choice.get("delta") or {}
            said.text += message.get("content") or ""
            said.reasoning += message.get("reasoning") or message.get("reasoning_content") or ""
            for position, call in enumerate(message.get("tool_calls") or ()):
                function = call.get("function") or {}
                said.call(call.get("index", position), function.get("name"), function.get("arguments"))
            _add_tokens(said, choice, (choice.get("logprobs") or {}).get("content"))
        for said in choices.values():
            said.prompt_ids = said.prompt_ids or body.get("prompt_token_ids") or []
    return _served(bodies, choices)


def _completions(bodies: list[Object]) -> Served:
    choices: dict[int, Said] = {}
    for body in bodies:
        for choice in body["choices"]:
            said = choices.setdefault(choice["index"], Said())
            said.text += choice.get("text") or ""
            said.prompt_ids = said.prompt_ids or choice.get("prompt_token_ids") or []
            logprobs = choice.get("logprobs") or {}
            said.logprobs += logprobs.get("token_logprobs") or ()
            said.top_logprobs += map(_entries, logprobs.get("top_logprobs") or ())
            _add_tokens(said, choice, logprobs.get("content"))
    return _served(bodies, choices)


def _add_tokens(said: Said, choice: Object, entries: list[Object] | None) -> None:
    entries = entries or []
    said.ids += choice.get("token_ids") or [entry["id"] for entry in entries if "id" in entry]
    said.of_entries = said.of_entries or any("id" in entry for entry in entries)
    said.logprobs += [entry["logprob"] for entry in entries]
    said.top_logprobs += [entry["top_logprobs"] for entry in entries]
    said.stop_reason = choice.get("stop_reason") or said.stop_reason
    said.finish_reason = choice.get("finish_reason") or said.finish_reason


def _entries(alternatives: dict[str, float]) -> list[Object]:
    return [{"token": token, "logprob": logprob} for token, logprob in alternatives.items()]


def _served(bodies: list[Object], choices: dict[int, Said]) -> Served:
    exact = (bodies[-1].get("__verbose") or {}).get("tokens")
    if exact and len(choices) == 1:
        choices[0].ids, choices[0].of_entries = exact, False
    return Served(bodies[0]["id"], choices, _last(body.get("usage") for body in bodies).get("completion_tokens"))


def _responses(bodies: list[Object]) -> Served:
    body = bodies[-1].get("response") or bodies[-1]
    said = Said()
    for position, item in enumerate(body["output"]):
        parts = item.get("content") or ()
        if item["type"] == "message":
            said.text += "".join(part.get("text") or "" for part in parts)
            said.logprobs += [entry["logprob"] for part in parts for entry in part.get("logprobs") or ()]
        elif item["type"] == "reasoning":
            said.reasoning += "".join(part.get("text") or "" for part in parts)
        elif item["type"] == "function_call":
            said.call(position, item["name"], item["arguments"])
    for source, target in (("input_messages", said.prompt_ids), ("output_messages", said.ids)):
        target += [number for message in body.get(source) or () for number in message["tokens"]]
    said.finish_reason = (body.get("incomplete_details") or {}).get("reason") or (
        "tool_calls" if said.calls else "stop"
    )
    return Served(body["id"], {0: said}, (body.get("usage") or {}).get("output_tokens"))


def _messages(bodies: list[Object]) -> Served:
    said = Said()
    # llama-server begins no message whose first token ends inside a character.
    message = bodies[0] if bodies[0]["type"] == "message" else bodies[0].get("message") or {}
    usage = [message.get("usage")]
    said.finish_reason = message.get("stop_reason")
    for index, block in enumerate(message.get("content") or ()):
        _add_block(said, index, block)
    for body in bodies:
        if body["type"] == "content_block_start":
            _add_block(said, body["index"], {**body["content_block"], "input": None})
        elif body["type"] == "content_block_delta":
            _add_delta(said, body["index"], body["delta"])
        elif body["type"] == "message_delta":
            said.finish_reason = body["delta"].get("stop_reason") or said.finish_reason
            usage.append(body.get("usage"))
    return Served(message.get("id"), {0: said}, _last(usage).get("output_tokens"))


def _add_block(said: Said, index: int, block: Object) -> None:
    said.text += block.get("text") or ""
    said.reasoning += block.get("thinking") or ""
    if block["type"] == "tool_use":
        # Unstreamed it is an object, not the text that the model wrote.
        said.call(index, block["name"], None if block.get("input") is None else json.dumps(block["input"]))


def _add_delta(said: Said, index: int, delta: Object) -> None:
    said.text += delta.get("text") or ""
    said.reasoning += delta.get("thinking") or ""
    if "partial_json" in delta:
        said.call(index, None, delta["partial_json"])


def _last(usages: Iterable[Object | None]) -> Object:
    return next((usage for usage in reversed(list(usages)) if usage), {})


_READERS: dict[str, Callable[[list[Object]], Served]] = {
    "/chat/completions": _chat,
    "/completions": _completions,
    "/responses": _responses,
    "/messages": _messages,
}
