"""Where the files beside an output are."""

from __future__ import annotations

import os
from pathlib import Path

_SUFFIXES = (".gz", ".zst", ".jsonl", ".ndjson", ".json")


def is_address(output: str) -> bool:
    """Whether an output is an address of a store, such as ``s3://bucket/runs``, and no local path."""
    return "://" in output


def is_folder(output: str) -> bool:
    """Whether an output is a local folder of shards."""
    return not is_address(output) and (output.endswith(("/", os.sep)) or os.path.isdir(output))


def beside(output: str, name: str) -> Path:
    """The local path of what belongs to an output: ``runs/x.history.jsonl`` for ``runs/x.jsonl``, else in its folder.

    What belongs to an address is in a folder of the current one that is named after it.
    """
    if is_address(output):
        return Path("rollouts-" + output.partition("://")[2].strip("/").replace("/", "-"), name)
    if is_folder(output):
        return Path(output, name)
    path = Path(output)
    stem = path.name
    for suffix in _SUFFIXES:
        stem = stem.removesuffix(suffix)
    return path.with_name(f"{stem}.{name}")
