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

from .harness import agent_of, content_of, litellm, session_of

ROOT = Path(__file__).parents[3]
PAGES = ["docs/google-adk.md", "integrations/rollout-trace-google-adk/README.md"]


@pytest.mark.parametrize("page", PAGES)
def test_the_example_of(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    before, with_, after = code.partition("with rt.recording")
    # In a coroutine, with a session, which the page leaves out.
    body = f"{before}session = await new_session(runner)\n{with_}{after}"
    source = "async def example(agent, question, grade, new_session, tools):\n" + textwrap.indent(body, "    ")
    with ScriptedServer("391") as server:
        source = source.replace("http://localhost:8000/v1", server.base_url)
        names: dict[str, Any] = {}
        exec(source, names)

        async def new_session(runner: Any) -> Any:
            return await runner.session_service.get_session(
                app_name=runner.app_name, user_id="me", session_id=await session_of(runner, user="me")
            )

        def grade(event: Any) -> float:
            return float("391" in str(event.content))

        asyncio.run(names["example"](agent_of(litellm(server)), content_of("What is 17 * 23?"), grade, new_session, []))
    (trajectory,) = rt.read("rollouts.jsonl")
    assert (trajectory.reward, len(trajectory.steps)) == (1.0, 1)
    assert trajectory.steps[0].completion_token_ids is not None
