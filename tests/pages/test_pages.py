"""Pages of the documentation whose files and programs run as pasted, from top to bottom, in one folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from page_programs import ROOT, run_page

from rollout_trace.testing import ScriptedServer

SKIPPED = {
    "start.md": ("Train",),
    "web-services.md": ("One trajectory a request",),
    "which-way.md": ("A framework",),
}
"""Sections whose programs need another environment: tests/consumers/torch and tests/mixed run them."""


def model(request: Mapping[str, Any]) -> str:
    """Adds the numbers of the question."""
    return f"It is {sum(map(int, re.findall(r'[0-9]+', request['messages'][-1]['content'])))}."


@pytest.mark.parametrize(
    "name", ["start.md", "tokens.md", "which-way.md", "multi-agent.md", "web-services.md", "security.md"]
)
def test_the_page_runs_as_pasted(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "page"
    folder.mkdir()
    (folder / "tests").symlink_to(ROOT / "tests")
    with ScriptedServer(model) as server:
        variables = {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "none"}
        run_page(ROOT / "docs" / name, folder, variables, skip=SKIPPED.get(name, ()))
