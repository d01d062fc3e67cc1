"""The JSON Schema of a line, generated from the records. ``python -m rollout_trace.file.schema`` writes its file."""

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
        **_without_field_docs(msgspec.json.schema(TrajectoryRecord)),
    }


def _without_field_docs(part: Any) -> Any:
    """The schema with the section ``Attributes`` cut from descriptions: a schema lists the fields itself."""
    if isinstance(part, list):
        return [_without_field_docs(item) for item in part]
    if not isinstance(part, dict):
        return part
    result = {name: _without_field_docs(item) for name, item in part.items()}
    if isinstance(result.get("description"), str):
        result["description"] = result["description"].partition("\n\nAttributes:")[0]
    return result


def text() -> str:
    """The text of the schema file."""
    return json.dumps(schema(), indent=2) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
