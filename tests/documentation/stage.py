"""What the pages take for granted: a model server, an agent, recorded files. `stages.py` has what single pages add."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openai import OpenAI
from page_blocks import ROOT

import rollout_trace as rt
from rollout_trace import export
from rollout_trace.testing import ScriptedServer
from tests.consumers import recorded


def adding(request: Mapping[str, Any]) -> str:
    """The model: adds the numbers of the last message."""
    messages = request.get("messages") or request.get("contents") or [{}]
    return f"It is {sum(map(int, re.findall(r'[0-9]+', str(messages[-1]))))}."


@dataclass
class Stage:
    """Where one page is read."""

    folder: Path
    server: ScriptedServer
    names: dict[str, Any] = field(default_factory=dict)
    """Of the blocks of Python."""
    programs: bool = False
    """Each block of Python is a program, with all that it needs."""
    variables: dict[str, str] = field(default_factory=dict)
    """Of the environment of commands."""
    tests: str = ""
    """What the file begins with into which blocks with `def test_` go. Without it they are blocks like others."""
    outputs: dict[str, Callable[[], str]] = field(default_factory=dict)
    """What prints the texts below these headings, where no block of the page does."""
    answer: Callable[[Mapping[str, Any]], Any] = adding
    """The model."""

    def write(self, name: str, text: str) -> None:
        """Writes a file that the page takes for granted."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def record(self, name: str, trajectories: list[rt.Trajectory]) -> None:
        """Writes a file of trajectories."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        with rt.JSONLWriter(path) as out:
            for one in trajectories:
                out.write(one)


Setting = Callable[[Stage], Iterator[None]]
"""Adds to a stage before its page is read; after its `yield`, checks what the page has made."""

PROGRAM = """
import os
import httpx

with httpx.Client(base_url=os.environ["OPENAI_BASE_URL"]) as client:
    for question in ("How much is 2 + 3?", "And 3 + 4?"):
        body = {"model": "m", "messages": [{"role": "user", "content": question}]}
        client.post("chat/completions", json=body).raise_for_status()
"""
"""An agent that knows nothing of recording. An SDK would take longer to import than all else that pages run."""


@functools.lru_cache
def _runs() -> list[rt.Trajectory]:
    return recorded.tool_agent()


def programs(stage: Stage) -> Iterator[None]:
    """Nothing but the test data of the checkout: the page brings all the rest."""
    stage.programs = True
    (stage.folder / "tests").mkdir(exist_ok=True)
    data = stage.folder / "tests" / "data"
    if not data.exists():
        data.symlink_to(ROOT / "tests" / "data")
    yield


def usual(stage: Stage) -> Iterator[None]:
    """A wrapped client, an agent and a reward, two groups of three recorded runs, tasks."""
    runs = _runs()
    client = rt.wrap_openai(OpenAI(base_url=stage.server.base_url, api_key="none"), engine="vllm")
    question = "How much is 2 + 3?"

    def solve(given: Any = client) -> str:
        """Takes a client, or a task."""
        asked = given["question"] if isinstance(given, Mapping) else question
        used = given if isinstance(given, OpenAI) else client
        messages: Any = [{"role": "user", "content": asked}]
        return str(used.chat.completions.create(model="m", messages=messages).choices[0].message.content)

    def grade(*given: Any) -> float:
        return float("5" in str(given))

    stage.names |= {
        "__name__": "__main__",
        **{"rt": rt, "export": export, "OpenAI": OpenAI, "client": client, "model": "m", "question": question},
        **{"solve": solve, "agent": solve, "grade": grade, "trajectories": runs, "trajectory": runs[0]},
        **{"tokenizer": stage.server.tokenizer, "step": runs[0].steps[0], "trajectory_id": runs[0].id},
    }
    stage.write("agent.py", PROGRAM)
    stage.write("my_agent.py", PROGRAM)
    stage.record("rollouts.jsonl", runs)
    stage.record("runs/a.jsonl", runs)
    tasks = [{"id": f"sum/{n}", "question": f"How much is {n} + 3?", "answer": str(n + 3)} for n in range(3)]
    stage.write("tasks.jsonl", "".join(json.dumps(one) + "\n" for one in tasks))
    yield
