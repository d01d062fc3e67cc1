"""The code blocks of docs/samplers.md. Each runs where its sampler is, or a stand-in."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "samplers.md"


def run_block(section: str, folder: Path, **names: Any) -> dict[str, Any]:
    """Runs the code of a section of the page, which writes into the folder. Returns its names."""
    text = PAGE.read_text().split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    (block,) = re.findall(r"```python\n(.*?)```", text, re.S)
    space = dict(names)
    exec(
        compile(block.replace('"rollouts.jsonl"', repr(str(folder / "rollouts.jsonl"))), f"{PAGE}, {section}", "exec"),
        space,
    )
    return space
