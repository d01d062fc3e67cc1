"""Draws docs/pictures/ from recordings: ``python -m tests.pictures.draw``."""

from __future__ import annotations

from pathlib import Path

from tests.consumers import recorded
from tests.pictures import plans, strips, tokens

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"


def pictures() -> dict[str, str]:
    """The text of each file by its name. Ids of recordings and times are in none: they are the same each time."""
    return {
        "recorder.svg": plans.recorder(),
        "ways.svg": plans.ways(),
        "agents.svg": plans.agents(),
        "tokens.svg": tokens.answer(),
        "drift.svg": tokens.drift(),
        "row-loop.svg": strips.draw("Three calls of a tool loop become one row", recorded.tool_agent()[:1]),
        "row-branch.svg": strips.draw("A turn made anew, and a new start: a row for each end", recorded.forked()),
        "row-choices.svg": strips.draw("Two choices of one call: a row for each", recorded.several_choices()),
        "row-agents.svg": strips.draw("An agent and its sub-agent: rows of their own", recorded.two_agents()[:2]),
        "row-drift.svg": strips.draw("Arguments written anew: the row is split", recorded.drifting()),
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in pictures().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
