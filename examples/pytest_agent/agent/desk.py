"""What happens to a letter: it is answered, and filed at a desk."""

from __future__ import annotations

from agent.support import answer
from agent.triage import triage


def handle(letter: str) -> str:
    """The answer to a letter, after the name of the desk where it is filed."""
    text = answer(letter)
    desk = triage(letter)["desk"]
    return f"{desk}: {text}"
