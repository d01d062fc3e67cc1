"""A letter's way through the shop: which desk it is for, then the answer."""

from __future__ import annotations

from agent.support import answer
from agent.triage import triage


def handle(letter: str) -> str:
    """The answer to a letter, after the name of the desk that it is for."""
    desk = triage(letter)["desk"]
    text = answer(letter)
    return f"{desk}: {text}"
