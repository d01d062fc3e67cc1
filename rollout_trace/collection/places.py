"""The files beside an output: where they are, and the lock that keeps two runs from making the same rollouts."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rollout_trace.file.addresses import is_address, is_folder_target, make_parents, shown
from rollout_trace.file.locking import lock_open

LOCK = ".collect.lock"
"""Name of the lock in a folder of shards."""
_SUFFIXES = (".gz", ".zst", ".jsonl", ".ndjson", ".json")
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
_held: set[int] = set()
"""Descriptors of the locked files of this process."""


def beside(output: str | None, name: str) -> Path:
    """The local path of what belongs to an output: ``runs/x.history.jsonl`` for ``runs/x.jsonl``, else in its folder.

    Of an address it is in a folder here with its name; without an output, in one of this process for temporary files.
    """
    if output is None:
        return Path(tempfile.gettempdir(), f"rollouts-{os.getpid()}", name)
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


@contextmanager
def claimed(output: str | None) -> Iterator[None]:
    """Keeps other runs on this machine from writing to an output in this block. Raises BlockingIOError if one does."""
    if output is None:
        yield
        return
    path = beside(output, LOCK if is_folder_target(output) else "collect.lock")
    make_parents(path.parent)
    file = _lock(path)
    if file is None:
        raise BlockingIOError(
            f"another run writes to {shown(output)}: both would make the same rollouts. Wait until it ends, or "
            "give another output."
        )
    _held.add(file)
    try:
        yield
    finally:
        # Not in a forked process that leaves the block.
        if file in _held:
            _held.discard(file)
            # While it is locked: who opens it after this makes another one.
            path.unlink(missing_ok=True)
            os.close(file)


def _lock(path: Path) -> int | None:
    """The descriptor of the locked file; None where another one has locked it."""
    while True:
        file = os.open(path, _FLAGS, 0o666)
        # None: there are no locks here, and nothing can be known.
        if lock_open(file) is False:
            os.close(file)
            return None
        try:
            if os.path.samestat(os.fstat(file), os.stat(path)):
                return file
        except FileNotFoundError:
            pass
        # It was deleted by the end of another run, between opening and locking it.
        os.close(file)


def _after_fork() -> None:
    """A forked process lets go of the locks: it would hold them for as long as it lives."""
    for file in list(_held):
        os.close(file)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
