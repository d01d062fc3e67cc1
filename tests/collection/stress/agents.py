"""Agents that make three calls a rollout, and keep what they saw."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import openai

from tests.collection.stress.plan import CALLS, SDK_RETRIES, Call, is_streamed, reward
from tests.collection.stress.server import SENDER

ASKED: dict[str, Any] = {"model": "m", "logprobs": True, "extra_body": {"return_token_ids": True}}
Seen = list[tuple[str, str, str]]
"""The message, the id of its answer and its text, or for both the exception's name."""


class Failing(RuntimeError):
    """A reward function that fails."""


def options(base_url: str) -> dict[str, Any]:
    """Of a client."""
    sender = {SENDER: str(os.getpid())}
    return {"base_url": base_url, "api_key": "none", "max_retries": SDK_RETRIES, "default_headers": sender}


def judge(task: Mapping[str, Any], result: Any, trajectory: Any) -> float:
    """The reward of a rollout by its last answer."""
    call = Call.of(result)
    found = reward(call.task, call.sample, result)
    if found is None:
        raise Failing("of the judge")
    return found


class SyncAgent:
    """For threads: one client for all of them."""

    def __init__(self, base_url: str) -> None:
        self.seen: Seen = []
        self._client = openai.OpenAI(**options(base_url), timeout=600)

    def __call__(self, task: Mapping[str, Any], rollout: Any) -> str:
        messages: list[Any] = []
        text = ""
        for position in range(CALLS):
            call = Call(task["number"], rollout.index, rollout.attempt, position)
            messages.append({"role": "user", "content": f"{call} of {task['question']}"})
            try:
                answer_id, text = self._ask(call, messages)
            except BaseException as error:
                self.seen.append((messages[-1]["content"], type(error).__name__, ""))
                raise
            self.seen.append((messages[-1]["content"], answer_id, text))
            messages.append({"role": "assistant", "content": text})
        return text

    def _ask(self, call: Call, messages: list[Any]) -> tuple[str, str]:
        create = self._client.chat.completions.create
        if not is_streamed(call):
            answer = create(messages=messages, **ASKED)
            return answer.id, answer.choices[0].message.content or ""
        answer_id, text = "", ""
        for chunk in create(messages=messages, stream=True, **ASKED):
            answer_id = chunk.id
            text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        return answer_id, text


class AsyncAgent:
    """For one event loop."""

    def __init__(self, base_url: str) -> None:
        self.seen: Seen = []
        self._client = openai.AsyncOpenAI(**options(base_url), timeout=600)

    async def __call__(self, task: Mapping[str, Any], rollout: Any) -> str:
        messages: list[Any] = []
        text = ""
        for position in range(CALLS):
            call = Call(task["number"], rollout.index, rollout.attempt, position)
            messages.append({"role": "user", "content": f"{call} of {task['question']}"})
            try:
                answer_id, text = await self._ask(call, messages)
            except BaseException as error:
                self.seen.append((messages[-1]["content"], type(error).__name__, ""))
                raise
            self.seen.append((messages[-1]["content"], answer_id, text))
            messages.append({"role": "assistant", "content": text})
        return text

    async def _ask(self, call: Call, messages: list[Any]) -> tuple[str, str]:
        create = self._client.chat.completions.create
        if not is_streamed(call):
            answer = await create(messages=messages, **ASKED)
            return answer.id, answer.choices[0].message.content or ""
        answer_id, text = "", ""
        async for chunk in await create(messages=messages, stream=True, **ASKED):
            answer_id = chunk.id
            text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        return answer_id, text

    async def close(self) -> None:
        """Closes the client's connections."""
        await self._client.close()
