"""The page docs/test-agents.md: its tests run as they stand there, and fail with the texts that it shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest_plugins = ("pytester",)

PAGE = (
    (Path(__file__).parents[2] / "docs" / "test-agents.md")
    .read_text(encoding="utf-8")
    .partition("\n## Asserts on rollouts\n")[2]
    .partition("\n## ")[0]
)
AGENT = """
    import rollout_trace as rt
    from openai import OpenAI
    from rollout_trace.testing import ScriptedServer
    from tests.testing import rollouts

    def ask(question, engine="vllm"):
        with ScriptedServer(rollouts.script) as server:
            rollouts.chat(server, engine=engine)
        return rollouts.ANSWER
"""
# Few examples: the page's test of an exporter is run, not what it tests.
PROFILE = """
    from hypothesis import HealthCheck, settings

    settings.register_profile("few", max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
    settings.load_profile("few")
"""
FAILING = """

def test_shown_called(rollout):
    ask("Is it warmer in Paris or in Rome?")
    rollout.assert_called("weather", city="Berlin")


def test_shown_trainable(rollout):
    ask("Is it warmer in Paris or in Rome?", engine=None)
    rollout.assert_trainable()
"""


def test_the_page(pytester: pytest.Pytester) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    shown = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    pytester.makeconftest(PROFILE)
    pytester.makepyfile(weather_agent=AGENT)
    pytester.makepyfile("\n\n".join(blocks) + FAILING)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:asyncio", "--tb=short")
    result.assert_outcomes(passed=sum(block.count("def test_") for block in blocks), failed=2)
    printed = [line.removeprefix("E").strip() for line in result.outlines]
    for text in shown:
        lines = [line.strip() for line in text.splitlines()]
        assert any(printed[at : at + len(lines)] == lines for at in range(len(printed))), text
