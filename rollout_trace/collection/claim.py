"""One run of ``collect`` at a time for an output: two would each make all of its rollouts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rollout_trace.collection.places import beside
from rollout_trace.file.addresses import is_folder_target, shown
from rollout_trace.file.locking import lock_open

NAME = ".collect.lock"
"""Of the file in a folder of shards."""
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
_held: set[int] = set()
"""Descriptors of the locked files of this process."""


@contextmanager
def claimed(output: str) -> Iterator[None]:
    """Keeps other runs, of this process and of others on this machine, from writing to an output in this block.

    Raises:
        BlockingIOError: another one writes to it.
        OSError: nothing can be written there.
    """
    path = beside(output, NAME if is_folder_target(output) else "collect.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    file = _lock(path)
    if file is None:
        raise BlockingIOError(
            f"another collect writes to {shown(output)}: both would make its rollouts. Wait for its end, or give "
            "another output."
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
