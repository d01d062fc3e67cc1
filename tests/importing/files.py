"""The files of each source, made by hand after its documented shapes, and what tests do with them."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rollout_trace as rt
from rollout_trace import importing
from rollout_trace.importing.imported import Imported

DATA = Path(__file__).parent.parent / "data" / "imports"
NAMES = sorted(importing.SOURCES)


def load(name: str, path: Any = None, **options: Any) -> Imported:
    """Imports a source's own files, or others."""
    return importing.SOURCES[name].importer(DATA / name if path is None else path, **options)


def files_of(name: str) -> list[Path]:
    """The files of a source that hold trajectories."""
    return sorted(path for path in (DATA / name).rglob("*.json*") if not path.name.endswith(".meta.json"))


def is_lines(path: Path) -> bool:
    """Whether a file is JSON by lines."""
    return path.suffix == ".jsonl"


def values_of(path: Path) -> list[Any]:
    """The values of a file: one for each line, or its one document."""
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()] if is_lines(path) else [json.loads(text)]


def text_of(path: Path, values: list[Any]) -> str:
    """What a file of these values holds."""
    return "".join(json.dumps(value) + "\n" for value in values)


def ids(array: Any) -> list[Any] | None:
    """An array as a list; None stays None."""
    return None if array is None else list(array.tolist())


def by_id(found: Iterator[rt.Trajectory]) -> dict[str, rt.Trajectory]:
    """Trajectories by the last part of their ids."""
    made = list(found)
    named = {one.id.rpartition("/")[2]: one for one in made}
    assert len(named) == len(made)
    return named


def as_eval(path: Path, log: dict[str, Any], method: int = zipfile.ZIP_DEFLATED) -> Path:
    """Writes a log as ``.eval``: its header, and each sample as a member of a zip."""
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("header.json", json.dumps({name: log[name] for name in log if name != "samples"}))
        for sample in log["samples"]:
            archive.writestr(f"samples/{sample['id']}_epoch_{sample['epoch']}.json", json.dumps(sample))
        archive.writestr("summaries.json", "[]")
    return path
