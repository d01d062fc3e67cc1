"""A worker as the runner has it: started when it is first asked, killed when it does not answer in time."""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PATIENCE = 600.0
"""Seconds in which a worker has to answer."""


class WorkerFailed(Exception):
    """The worker answered with an error, died, or did not answer in time."""


def python_of(environment: str) -> Path:
    """The interpreter of an environment that `make NAME` makes."""
    return ROOT / ".venvs" / environment / "bin" / "python"


def clean_environment() -> dict[str, str]:
    """This process's variables, with compiled modules as they are where a package is installed, and these modules."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(ROOT)}


class WorkerProcess:
    """One peer in one process."""

    def __init__(self, environment: str, adapter: str, folder: Path) -> None:
        self._command = [str(python_of(environment)), "-m", "benchmarks.peers.worker", adapter]
        self._log = folder / f"{environment}-{adapter}.log"
        self._folder = tempfile.mkdtemp(dir=folder)
        self._process: subprocess.Popen[bytes] | None = None
        self._left = b""

    def ask(self, do: str, *, patience: float = PATIENCE, **arguments: Any) -> Any:
        """What the worker's method of that name returns. Raises WorkerFailed."""
        process = self._started()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            process.stdin.flush()
        except OSError as error:
            raise WorkerFailed(f"died; see {self._log}") from error
        answer = json.loads(self._line(process, patience))
        if "error" in answer:
            raise WorkerFailed(answer["error"])
        return answer["found"]

    def stop(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    [*self._command, self._folder],
                    cwd=self._folder,  # some write into it
                    env=clean_environment(),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                )
        return self._process

    def _line(self, process: subprocess.Popen[bytes], patience: float) -> bytes:
        assert process.stdout is not None
        while b"\n" not in self._left:
            if not select.select([process.stdout], [], [], patience)[0]:
                self.stop()
                raise WorkerFailed(f"no answer in {patience:.0f} s")
            data = os.read(process.stdout.fileno(), 1 << 20)
            if not data:
                raise WorkerFailed(f"died; see {self._log}")
            self._left += data
        line, _, self._left = self._left.partition(b"\n")
        return line
