"""The JSON Schema of a line, made from the records. ``python -m rollout_trace.file.schema`` writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from rollout_trace.file.records import SCHEMA, TrajectoryRecord

PATH = Path(__file__).parent.parent / "schema" / f"{SCHEMA.replace('/', '-')}.json"


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of one line of a file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{SCHEMA.replace('/', ':')}",
        "title": SCHEMA,
        **msgspec.json.schema(TrajectoryRecord),
    }


def text() -> str:
    """The schema as its file holds it."""
    return json.dumps(schema(), indent=2) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
