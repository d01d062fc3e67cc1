"""README.md and the welcome page: their links lead somewhere, and each integration is named."""

from __future__ import annotations

import re

import pytest
from page_blocks import ROOT


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_links_lead_to_files(page: str) -> None:
    path = ROOT / page
    for name in re.findall(r"\]\(([^)#]+)", path.read_text(encoding="utf-8")):
        assert (path.parent / name).exists(), name


def test_readme_names_each_integration() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8").lower().replace(" ", "-")
    for folder in (ROOT / "integrations").glob("rollout-trace-*"):
        assert folder.name.removeprefix("rollout-trace-") in text, folder.name
