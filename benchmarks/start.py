"""What ``rollout-trace run`` adds to the start of a program, in CPU time, over ``python`` in turns."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import Effort, Row, at_most, differences, spread

PROGRAMS = {
    "of a program that imports no SDK": ("", 15.0),
    "of a program that imports httpx": ("import httpx", 130.0),
    "of a program that imports openai": ("import openai", 130.0),
}
_LIBRARY = str(Path(__file__).resolve().parents[1])
# As the script that pip makes for the command.
_COMMAND = "import sys\nfrom rollout_trace.cli import main\nsys.exit(main())\n"


def run(effort: Effort) -> Iterator[Row]:
    """Rows of this section."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "rollout-trace").write_text(_COMMAND)
        for what, (program, limit) in PROGRAMS.items():
            script = folder / "agent.py"
            script.write_text(program)
            commands = [
                [sys.executable, str(script)],
                [sys.executable, str(folder / "rollout-trace"), "run", "-q", str(script)],
                [sys.executable, "-c", f"import os, sys; os.execv(sys.executable, [sys.executable, {str(script)!r}])"],
            ]
            plain, ours, twice = _measured(commands, folder, effort.repeat(15 if program else 60))
            more = (
                f"{spread(plain).middle:.1f} ms without it; two starts of python, one executing the other, add "
                f"{differences(twice, plain).middle:.1f} ms"
            )
            yield at_most(f"start {what}", differences(ours, plain), limit, form=".1f", unit=" ms", more=more)


def _measured(commands: list[list[str]], folder: Path, rounds: int) -> list[list[float]]:
    """Milliseconds of each command in each round, in random order; the first round, which compiles, is thrown away."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    variables["PYTHONPATH"] = _LIBRARY
    found: list[list[float]] = [[] for _ in commands]
    order = random.Random(0)
    for number in range(rounds + 1):
        for at in order.sample(range(len(commands)), len(commands)):
            process = subprocess.Popen(commands[at], cwd=folder, env=variables)
            # CPU time, of the user and of the system: a busy machine makes a start last several times as long.
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                raise RuntimeError(f"{commands[at]} ended with {process.returncode}")
            if number:
                found[at].append((usage.ru_utime + usage.ru_stime) * 1e3)
    return found
