"""Where the files beside an output are."""

from __future__ import annotations

from pathlib import Path

from rollout_trace.file.addresses import is_address, is_folder_target, shown

_SUFFIXES = (".gz", ".zst", ".jsonl", ".ndjson", ".json")


def beside(output: str, name: str) -> Path:
    """The local path of what belongs to an output: ``runs/x.history.jsonl`` for ``runs/x.jsonl``, else in its folder.

    What belongs to an address is in a folder of the current one that is named after it.
    """
    if is_address(output):
        return Path("rollouts-" + shown(output).partition("://")[2].strip("/").replace("/", "-"), name)
    if is_folder_target(output):
        return Path(output, name)
    path = Path(output)
    stem = path.name
    for suffix in _SUFFIXES:
        stem = stem.removesuffix(suffix)
    return path.with_name(f"{stem}.{name}")


def history(output: str) -> str | Path:
    """The place of an output's history: a file beside it, or its address, where each run has an object of its own."""
    return output if is_address(output) else beside(output, "history.jsonl")
