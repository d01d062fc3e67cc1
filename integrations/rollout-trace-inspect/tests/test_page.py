"""The examples of the page and of the README."""

from __future__ import annotations

import asyncio
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.testing import ScriptedServer

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/inspect.md"
README = ROOT / "integrations/rollout-trace-inspect/README.md"
TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes

@task
def sums():
    return Task(dataset=[Sample(input="What is 2 + 3?", target="5")], scorer=includes())
"""


def blocks(page: Path) -> list[str]:
    """The Python blocks of a page."""
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("page", [PAGE, README], ids=["page", "readme"])
def test_the_examples_of(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("INSPECT_DISPLAY", "none")
    (tmp_path / "task.py").write_text(TASK)
    first, *others = blocks(page)
    names: dict[str, Any] = {}
    with ScriptedServer("It is 5.") as server:
        exec(first.replace("http://localhost:8000/v1", server.base_url), names)
        (log,), (file,) = tmp_path.glob("logs/*.eval"), tmp_path.glob("logs/*.rollouts.jsonl")
        written = list(rt.read(file))
        assert file.name == f"{log.stem}.rollouts.jsonl"
        assert sorted((one.rollout_index, one.reward) for one in written) == [(number, 1.0) for number in range(8)]
        server.wait_idle()
        assert len(server.requests) == sum(len(one.steps) for one in written) == 8
        if others:
            join, loop = others
            exec(join.replace("logs/2026-01-01_sums", f"logs/{log.stem}"), names)
            assert names["event"].event == "model"
            _run(loop, names)
            (own,) = rt.read("rollouts.jsonl")
            assert own.task is not None
            # In a second event loop, older releases send the first call again.
            assert (own.task.id, [step.status for step in own.steps][-1:]) == ("sum/1", ["ok"])


def _run(code: str, names: dict[str, Any]) -> None:
    exec("async def example(model, add, rt):\n" + textwrap.indent(code, "    "), names)

    def add() -> Any:
        from inspect_ai.tool import tool

        @tool(name="add")
        def made() -> Any:
            async def execute(a: int, b: int) -> str:
                """Adds two numbers.

                Args:
                    a: The first.
                    b: The second.
                """
                return str(a + b)

            return execute

        return made()

    asyncio.run(names["example"](names["model"], add, rt))
