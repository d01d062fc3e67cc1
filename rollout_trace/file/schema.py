"""The JSON Schemas of a line and of a note, generated from the records. ``python -m rollout_trace.file.schema`` writes
their files.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import msgspec

from rollout_trace.file.records import NOTE_SCHEMA, SCHEMA, NoteRecord, TrajectoryRecord

_FOLDER = Path(__file__).parent.parent / "schema"
PATH = _FOLDER / f"{SCHEMA.replace('/', '-')}.json"
NOTE_PATH = _FOLDER / f"{NOTE_SCHEMA.replace('/', '-')}.json"


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of one line of a file."""
    return _schema(SCHEMA, TrajectoryRecord)


def note_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of one line of a file of notes."""
    return _schema(NOTE_SCHEMA, NoteRecord)


def _schema(name: str, record: type[msgspec.Struct]) -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{name.replace('/', ':')}",
        "title": name,
        **_without_field_docs(msgspec.json.schema(record)),
    }


def _without_field_docs(part: Any) -> Any:
    """The schema with the section ``Attributes`` cut from descriptions: a schema lists the fields itself."""
    if isinstance(part, list):
        return [_without_field_docs(item) for item in part]
    if not isinstance(part, dict):
        return part
    result = {name: _without_field_docs(item) for name, item in part.items()}
    if isinstance(result.get("description"), str):
        # From Python 3.13 on, docstrings have no indentation.
        result["description"] = inspect.cleandoc(result["description"]).partition("\n\nAttributes:")[0]
    return result


def text(schema: dict[str, Any]) -> str:
    """The text of the file of a schema."""
    return json.dumps(schema, indent=2) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(schema()), encoding="utf-8")
    NOTE_PATH.write_text(text(note_schema()), encoding="utf-8")
