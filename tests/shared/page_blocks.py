"""The Python blocks of a page of the documentation, to run them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str, heading: str) -> list[str]:
    """The Python blocks below a heading, up to the next one of its level."""
    parts = f"\n{(DOCS / page).read_text()}".split("\n## ")
    (section,) = [part for part in parts if part.startswith(heading)]
    return [block.partition("\n")[2] for block in section.split("```")[1::2] if block.startswith("python\n")]


def run_blocks(page: str, heading: str, **names: Any) -> dict[str, Any]:
    """Runs the blocks below a heading one after the other, with these names; returns all names."""
    found = blocks(page, heading)
    assert found, f"{page} has no Python block below {heading}"
    for number, block in enumerate(found):
        exec(compile(block, f"docs/{page}, {heading}, block {number}", "exec"), names)
    return names
