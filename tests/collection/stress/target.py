"""The program that is killed: ``python -m tests.collection.stress.target BASE_URL OUTPUT EXECUTOR SEEN``.

It collects, resumes what an earlier one left, and exits with 0 when all is there. What an agent saw returned goes to
the file ``SEEN`` in the moment that it saw it.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import openai

import rollout_trace as rt
from tests.collection.stress.agents import ASKED, options

TASKS, SAMPLES, CALLS = 16, 2, 3
CONCURRENCY = 6
_client: openai.OpenAI | None = None


def tasks() -> list[dict[str, Any]]:
    """The tasks."""
    return [{"id": f"t{number}", "question": f"naïve question {number} 🙂"} for number in range(TASKS)]


def is_failing(task: str, index: int) -> bool:
    """Whether the agent raises in this rollout, after its calls."""
    return (int(task[1:]) + index) % 7 == 3


def agent(task: dict[str, Any], rollout: rt.Rollout) -> str:
    """Three calls in one conversation; the second one is streamed."""
    global _client
    # One a process: it may have been forked, or be a new worker.
    _client = _client or openai.OpenAI(**options(os.environ["STRESS_SERVER"]))
    messages: list[Any] = []
    text = ""
    for position in range(CALLS):
        asked = f"{task['id']}/{rollout.index}/{position} of {task['question']}, seed {rollout.seed}"
        messages.append({"role": "user", "content": asked})
        answer_id, text = _ask(_client, messages, streamed=position == 1)
        with open(os.environ["STRESS_SEEN"], "a") as seen:
            seen.write(json.dumps([answer_id, text]) + "\n")
        messages.append({"role": "assistant", "content": text})
    if is_failing(task["id"], rollout.index):
        raise RuntimeError("of the agent")
    return text


def _ask(client: openai.OpenAI, messages: list[Any], *, streamed: bool) -> tuple[str, str]:
    if not streamed:
        answer = client.chat.completions.create(messages=messages, **ASKED)
        return answer.id, answer.choices[0].message.content or ""
    answer_id, text = "", ""
    for chunk in client.chat.completions.create(messages=messages, stream=True, **ASKED):
        answer_id = chunk.id
        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
    return answer_id, text


def judge(task: dict[str, Any], result: str, trajectory: rt.Trajectory) -> float:
    """The reward: how long the last answer is."""
    return float(len(result))


def warm() -> None:
    """Has the SDK import what it imports only for the first client."""
    with openai.OpenAI(base_url="http://127.0.0.1:9", api_key="none") as client:
        client.chat.completions  # noqa: B018


def main(base_url: str, output: str, executor: Any, seen: str) -> None:
    """Collects until all is there."""
    os.environ |= {"STRESS_SERVER": base_url, "STRESS_SEEN": seen}
    rt.collect(
        "tests.collection.stress.target:agent",
        tasks(),
        output=output,
        samples=SAMPLES,
        concurrency=CONCURRENCY,
        seed=11,
        reward="tests.collection.stress.target:judge",
        progress=False,
        executor=executor or None,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
