"""Which desk a customer's letter goes to: one call, whose answer has to fit a schema."""

from __future__ import annotations

import json
from typing import Any

from openai import OpenAI

from agent.support import model

DESKS = ("refunds", "deliveries", "complaints")
SYSTEM = "Say which desk a letter goes to."
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"desk": {"enum": list(DESKS)}, "urgent": {"type": "boolean"}},
    "required": ["desk", "urgent"],
    "additionalProperties": False,
}


def triage(letter: str) -> dict[str, Any]:
    """The desk, and whether it is urgent. Raises ValueError if the model's answer is not JSON."""
    done = OpenAI().chat.completions.create(
        model=model(),
        messages=[{"role": "system", "content": SYSTEM}, {"role": "user", "content": letter}],
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "desk", "schema": SCHEMA, "strict": True},
        },
        max_tokens=64,
    )
    found: dict[str, Any] = json.loads(done.choices[0].message.content or "")
    return found
