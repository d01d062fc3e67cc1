"""README.md and the welcome page: their links lead somewhere, and each integration is named. Pages that moved."""

from __future__ import annotations

import re

import pytest
from page_blocks import ROOT

from docs_build.hooks import MOVED


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_links_lead_to_files(page: str) -> None:
    path = ROOT / page
    for name in re.findall(r"\]\(([^)#]+)", path.read_text(encoding="utf-8")):
        assert (path.parent / name).exists(), name


def test_readme_names_each_integration() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8").lower().replace(" ", "-")
    for folder in (ROOT / "integrations").glob("rollout-trace-*"):
        assert folder.name.removeprefix("rollout-trace-") in text, folder.name


def test_pages_that_have_moved_are_where_the_site_says() -> None:
    """Their old addresses lead to a heading that there is, and no page of the repository has the old name."""
    for old, new in MOVED.items():
        page, _, anchor = new.partition("#")
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        titles = [re.sub(r"[^\w\s-]", "", one).lower() for one in re.findall("^## (.*)", text, re.MULTILINE)]
        assert anchor in [re.sub(r"[\s-]+", "-", one) for one in titles], new
        assert not (ROOT / "docs" / f"{old}.md").exists()
