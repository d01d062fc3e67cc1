"""A folder with an agent and its tests, as users have one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import httpx2
import numpy
import openai
import pytest
import pytest_asyncio.plugin
from edited import edit

import rollout_trace as rt
import rollout_trace.train.checks
import rollout_trace.view.trajectory_view
from rollout_trace.data.exchange import Exchange
from rollout_trace.testing import ScriptedServer, pytest_tests

USED_IN_TESTS = (httpx2, numpy, openai, pytest_asyncio.plugin, pytest_tests)
"""Imported here, or pytester would forget them after each run, and every run import them anew."""

AGENT = '''
import json
import os

from openai import AsyncOpenAI, OpenAI

KEY = "sk-proj-0123456789abcdefghijklmnop"
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
SYSTEM = "You know the weather."
MODEL = "scripted"


def client(kind=OpenAI, **options):
    return kind(base_url=os.environ.get("MODEL_URL", "http://models.invalid/v1"), api_key=KEY, **options)


def begin(question):
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]


def add(messages, content, calls):
    """Adds an answer and the results of its tool calls; False where there are none."""
    calls = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls]
    messages.append({"role": "assistant", "content": content} | ({"tool_calls": calls} if calls else {}))
    for call in calls:
        city = json.loads(call["function"]["arguments"])["city"]
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": f"{len(city)} degrees"})
    return bool(calls)


def parts(message):
    return message.content, [(c.id, c.function.name, c.function.arguments) for c in message.tool_calls or ()]


def solve(question, *, stream=False, model=None):
    messages = begin(question)
    arguments = {"model": model or MODEL, "tools": [TOOL], "temperature": 0.5}
    with client() as model_client:
        while True:
            if stream:
                with model_client.chat.completions.stream(messages=messages, **arguments) as events:
                    message = events.get_final_completion().choices[0].message
            else:
                message = model_client.chat.completions.create(messages=messages, **arguments).choices[0].message
            content, calls = parts(message)
            if not add(messages, content, calls):
                return content


async def solve_async(question):
    messages = begin(question)
    async with client(AsyncOpenAI) as model_client:
        while True:
            answer = await model_client.chat.completions.create(model=MODEL, tools=[TOOL], messages=messages)
            content, calls = parts(answer.choices[0].message)
            if not add(messages, content, calls):
                return content
'''


@dataclass
class Project:
    """The folder, and what is done in it."""

    pytester: pytest.Pytester
    model: ScriptedServer
    monkeypatch: pytest.MonkeyPatch

    def tests(self, text: str, name: str = "test_agent") -> None:
        """Writes a file of tests."""
        head = "import asyncio\nimport pytest\nimport agent\nfrom agent import solve, solve_async\n\n"
        self.pytester.makepyfile(**{name: head + text})

    def change(self, old: str, new: str, file: str = "agent.py") -> None:
        """Changes a file that is there."""
        edit(self.pytester.path / file, old, new)

    def record(self, *options: str) -> pytest.RunResult:
        """Records from the model server."""
        self.monkeypatch.setenv("MODEL_URL", self.model.base_url)
        try:
            return self.run("--replay=record", *options)
        finally:
            self.monkeypatch.delenv("MODEL_URL")

    def replay(self, *options: str) -> pytest.RunResult:
        """Replays: the agent's own address leads nowhere, and the model server must get nothing."""
        before = len(self.model.requests)
        result = self.run(*options)
        assert len(self.model.requests) == before
        return result

    def run(self, *options: str) -> pytest.RunResult:
        """Runs pytest here: what it imports is imported already, so nothing is imported twice."""
        return self.pytester.runpytest_inprocess("-p", "no:cacheprovider", *options)

    def run_apart(self, *options: str) -> pytest.RunResult:
        """Runs pytest in a process of its own."""
        return self.pytester.runpytest_subprocess("-p", "no:cacheprovider", *options)

    def cassette(self, path: str) -> list[rt.Trajectory]:
        """What a cassette holds."""
        return list(rt.read(self.pytester.path / path))


def exchanges_of(trajectories: list[rt.Trajectory]) -> list[Exchange]:
    """All exchanges of a cassette."""
    return [exchange for trajectory in trajectories for exchange in trajectory.exchanges]


def plain(text: str) -> str:
    """Text without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def read(path: Path) -> str:
    """A file's text."""
    return path.read_text(encoding="utf-8")
