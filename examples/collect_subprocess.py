"""Rollouts in sandboxes: each is a program of its own, in a folder of its own, and its calls are recorded in it.

Runs against an embedded server (no key, no network), or against yours:

    python collect_subprocess.py
    python collect_subprocess.py --base-url http://localhost:8000/v1 --engine vllm
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from contextlib import ExitStack
from typing import Any

import rollout_trace as rt
from rollout_trace.testing import ScriptedServer

# The agent: any program. It does not import rollout_trace, and leaves its answer in the folder that it runs in.
PROGRAM = """
import sys
from pathlib import Path

from openai import OpenAI

messages = [{"role": "user", "content": sys.argv[1]}]
with OpenAI() as client:
    model = client.models.list().data[0].id
    draft = client.chat.completions.create(model=model, messages=messages).choices[0].message.content
    messages += [{"role": "assistant", "content": draft}, {"role": "user", "content": "The number alone, please."}]
    answer = client.chat.completions.create(model=model, messages=messages).choices[0].message.content
Path("answer.txt").write_text(answer or "")
"""
TASKS = [{"id": f"sum/{n}", "question": f"What is {n} + {n * n} ?", "truth": n + n * n} for n in range(1, 4)]


def rollout_in_a_sandbox(task: dict[str, Any], rollout: rt.Rollout) -> str:
    """Runs the program; what it calls becomes a trajectory inside the rollout's."""
    subprocess.run(
        [sys.executable, "-c", PROGRAM, task["question"]],
        cwd=rollout.folder,
        env={**os.environ, **rt.child_environment()},
        check=True,
    )
    return (rollout.folder / "answer.txt").read_text()


def is_right(task: dict[str, Any], answer: str, trajectory: rt.Trajectory) -> float:
    """The reward."""
    return float(answer.strip() == str(task["truth"]))


def answer(request: dict[str, Any]) -> str:
    """The embedded model: it can add, and is wrong about 3."""
    numbers = [int(text) for text in re.findall(r"\d+", request["messages"][0]["content"])]
    total = sum(numbers) + (numbers[0] == 3)
    return f"{total}" if len(request["messages"]) > 1 else f"I think that it is {total}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", help="an OpenAI-compatible server; without it an embedded one answers")
    parser.add_argument("--engine", help="the engine behind it, to be asked for token ids")
    parser.add_argument("--output", default="sandboxes.jsonl")
    options = parser.parse_args()
    with ExitStack() as stack:
        url = options.base_url or stack.enter_context(ScriptedServer(answer)).base_url
        # The program finds its server as any program does.
        os.environ["OPENAI_BASE_URL"] = url
        os.environ.setdefault("OPENAI_API_KEY", "none")
        rt.collect(
            rollout_in_a_sandbox,
            TASKS,
            output=options.output,
            reward=is_right,
            samples=2,
            concurrency=2,
            timeout=120,
            engine=options.engine or (None if options.base_url else "vllm"),
        )
    rollouts = {one.id: one for one in rt.read(options.output)}
    for program in rollouts.values():
        if program.parent_id is not None:
            parent = rollouts[program.parent_id]
            sampled = sum(len(ids) for step in program.steps if (ids := step.completion_token_ids) is not None)
            print(
                f"{parent.group_id} [{parent.rollout_index}]: {len(program.steps)} calls, {sampled} sampled tokens, "
                f"reward {parent.reward}"
            )


if __name__ == "__main__":
    main()
