"""What a person who waits for several sets of tests is shown. For noxfile.py, in whose environment no pytest is."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

FILE, FOLDER = "ROLLOUT_TRACE_PROGRESS", "ROLLOUT_TRACE_PROGRESS_FOLDER"
SECONDS = 10.0
"""Between two lines."""


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


@contextlib.contextmanager
def told(name: str, doing: str) -> Iterator[dict[str, str]]:
    """Says what is being done for a set, where `reported` is around; gives what pytest needs to go on with it."""
    folder = os.environ.get(FOLDER)
    if folder is None:
        yield {}
        return
    if not folder:
        yield {FILE: ""}
        return
    file = Path(folder, name)
    file.write_text(doing)
    try:
        yield {FILE: str(file)}
    finally:
        file.unlink()


@contextlib.contextmanager
def reported() -> Iterator[dict[str, str]]:
    """Prints what all sets are at, every ten seconds, unless a terminal shows it; gives what their processes need."""
    if sys.stdout.isatty():
        # nox shows a board of its own there.
        yield {FOLDER: ""}
        return
    with tempfile.TemporaryDirectory() as folder:
        began, over = time.monotonic(), threading.Event()

        def say() -> None:
            while not over.wait(SECONDS):
                lines = [f"{file.name}: {file.read_text()}" for file in sorted(Path(folder).iterdir())]
                print(f"{clock(time.monotonic() - began)}  {'; '.join(lines) or 'between two sets'}", flush=True)

        thread = threading.Thread(target=say, daemon=True)
        thread.start()
        try:
            yield {FOLDER: folder}
        finally:
            over.set()
            thread.join()
