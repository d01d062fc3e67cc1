"""The program that is killed: 16 rollouts at a time in two recordings, in threads and tasks, with streams and tools.

    python -m tests.record.kills.target BASE_URL FOLDER SUFFIX_A SUFFIX_B [FAULT [WRITER]]

What an agent saw returned goes to ``FOLDER/seen``, in the moment that it saw it; the numbers of writer processes to
``FOLDER/writers``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai

import rollout_trace as rt
from rollout_trace.file import journal as journal_files
from rollout_trace.record import call as call_module
from tests.record.kills import faults

ROUNDS = 2
TURNS = 4
RULES = [{"role": "system", "content": " ".join(f"rule {number}" for number in range(150))}]
"""So much that requests and answers are written as differences."""
ASKED: dict[str, Any] = {"model": "m", "logprobs": True, "extra_body": {"return_token_ids": True}}


class Agents:
    """The agents of one program."""

    def __init__(self, base_url: str, folder: Path) -> None:
        self._options: dict[str, Any] = {"base_url": base_url, "api_key": "none", "max_retries": 0}
        self._seen = os.open(folder / "seen", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._client = rt.wrap_openai(openai.OpenAI(**self._options))

    def see(self, response_id: str, text: str) -> None:
        """Keeps what an agent has in its hands."""
        faults.plain_write(self._seen, json.dumps([response_id, text]).encode() + b"\n")

    def rollout(self, number: int) -> None:
        """One rollout in a thread; the odd ones stream."""
        with rt.trajectory(f"agent {number}", task=f"{number}", metadata={"turn": 0}) as trajectory:
            messages: list[Any] = list(RULES) if number % 4 < 2 else []
            for turn in range(TURNS):
                messages.append({"role": "user", "content": f"{number}: question {turn}"})
                response_id, text = self._streamed(messages) if number % 2 else self._whole(messages)
                self.see(response_id, text)
                messages.append({"role": "assistant", "content": text})
                with rt.tool_run("search", arguments={"turn": turn}) as run:
                    run.result = text
                assert trajectory.metadata is not None
                trajectory.metadata["turn"] = turn
            trajectory.reward = float(number)

    def _whole(self, messages: list[Any]) -> tuple[str, str]:
        answer = self._client.chat.completions.create(messages=messages, **ASKED)
        return answer.id, answer.choices[0].message.content

    def _streamed(self, messages: list[Any]) -> tuple[str, str]:
        response_id, text = "", ""
        for chunk in self._client.chat.completions.create(messages=messages, stream=True, **ASKED):
            response_id = chunk.id
            text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        return response_id, text

    def tasks(self, numbers: list[int]) -> None:
        """Rollouts as tasks of an event loop."""

        async def all_of_them() -> None:
            async with openai.AsyncOpenAI(**self._options) as client:
                await asyncio.gather(*(self._task(rt.wrap_openai(client), number) for number in numbers))

        asyncio.run(all_of_them())

    async def _task(self, client: Any, number: int) -> None:
        async with rt.trajectory(f"task {number}", task=f"{number}") as trajectory:
            for turn in range(TURNS):
                messages = [{"role": "user", "content": f"{number}: again {turn}"}]
                answer = await client.chat.completions.create(messages=messages, **ASKED)
                self.see(answer.id, answer.choices[0].message.content)
            trajectory.reward = float(number)


@contextmanager
def recording(path: Path, writer: Any) -> Iterator[None]:
    """A recording; the number of its writer process is noted."""
    one = rt.recording(path, writer=writer)
    with one:
        process = None if one._queue is None else one._queue._process
        if process is not None:
            with (path.parent / "writers").open("a") as file:
                file.write(f"{process.pid}\n")
        yield


def main(base_url: str, folder: Path, suffixes: list[str], writer: str = "thread") -> None:
    """Runs all rollouts."""
    agents = Agents(base_url, folder)
    with ThreadPoolExecutor(16) as pool:
        for _ in range(ROUNDS):
            with recording(folder / f"a.jsonl{suffixes[0]}", writer):
                waiting = [pool.submit(rt.propagate(agents.rollout), number) for number in range(6)]
                with recording(folder / f"b.jsonl{suffixes[1]}", writer):
                    waiting += [pool.submit(rt.propagate(agents.rollout), number) for number in range(6, 12)]
                    waiting.append(pool.submit(rt.propagate(agents.tasks), [12, 13, 14, 15]))
                    for one in waiting:
                        one.result()


def warm() -> None:
    """Has the SDK import what it imports only for the first client."""
    with openai.OpenAI(base_url="http://127.0.0.1:9", api_key="none") as client:
        client.chat.completions  # noqa: B018


def begin(args: list[str]) -> None:
    """The program."""
    # Small, so that one process rotates often, and a stream is in the journal before it has ended.
    journal_files.ROTATE_AT = 30_000
    call_module.JOURNAL_SECONDS = 0.0
    faults.arm(args[4] if len(args) > 4 else "")
    main(args[0], Path(args[1]), args[2:4], *args[5:6])


if __name__ == "__main__":
    begin(sys.argv[1:])
