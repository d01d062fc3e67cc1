"""Runs the command in a process of its own, as a shell does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple


class Done(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What was printed, as the one JSON object that it has to be."""
        return json.loads(self.out)


def command(folder: Path, *args: str | Path, stdin: str = "", without: str | None = None) -> Done:
    """Runs ``rollout-trace`` with these arguments in a folder; ``without``: a module that cannot be imported."""
    start = "import sys\n" + (f"sys.modules[{without!r}] = None\n" if without else "")
    program = f"{start}from rollout_trace.cli import main\nsys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *map(str, args)],
        cwd=folder,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return Done(done.returncode, done.stdout, done.stderr)
