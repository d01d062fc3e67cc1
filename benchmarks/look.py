"""Looking at a large file from the command line: MB of JSON a second of CPU time, peak memory, time to first output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import rollout_trace as rt
from benchmarks.report import Effort, Row, at_least, at_most, spread
from benchmarks.trajectories import long_agent, single_turns
from rollout_trace.data.model import new_id
from rollout_trace.file.encode import encode

WHOLE = {"stats": ["stats"], "ls": ["ls"], "check": ["check"], "check --format": ["check", "--format"]}
"""Commands that read all of a file."""
FIRST = {"ls": ["ls"], "ls --raw": ["ls", "-1", "--raw"], "ls --last": ["ls", "-1", "--last"], "show": ["show"]}
SPEED = 100
MEMORY = 200
AT_ONCE = 0.3


class Used(NamedTuple):
    """What a process has used."""

    cpu: float
    """Seconds."""
    peak: int
    """Bytes of resident memory."""


def run(effort: Effort) -> Iterator[Row]:
    """Rows of this section."""
    size = effort.size(1_000_000_000, 100_000_000)
    agents = [long_agent(20, seed) for seed in range(10)]
    with tempfile.TemporaryDirectory() as folder:
        for name, trajectories in {"single turns": single_turns(50), "20 turns": agents}.items():
            path = Path(folder) / "rollouts.jsonl"
            written = _write(trajectories, path, size)
            yield from _whole(f"{written / 1e9:.1f} GB, {name}", path, written, effort)
            yield from _first(f"{written / 1e9:.1f} GB, {name}", path, effort)


def _write(trajectories: Sequence[rt.Trajectory], path: Path, size: int) -> int:
    """Writes the lines again and again, each with an id of its own; returns bytes."""
    lines = [(bytes(encode(one)).rstrip(b"\n") + b"\n", one.id.encode()) for one in trajectories]
    written = 0
    with path.open("wb") as file:
        while written < size:
            for line, own in lines:
                written += file.write(line.replace(own, new_id().encode()))
    return written


def _whole(what: str, path: Path, size: int, effort: Effort) -> Iterator[Row]:
    for name, arguments in _there(WHOLE).items():
        used = [_use([*arguments, str(path)]) for _ in range(effort.repeat(3))]
        more = f"{used[0].cpu:.1f} s of CPU time, with the start of the process"
        speed = spread(size / one.cpu / 1e6 for one in used)
        yield at_least(f"{name}, {what}", speed, SPEED, form=".0f", unit=" MB/s", more=more)
        memory = spread(one.peak / 1e6 for one in used)
        yield at_most(f"{name}, {what}, peak memory", memory, MEMORY, form=".0f", unit=" MB")


def _first(what: str, path: Path, effort: Effort) -> Iterator[Row]:
    own = json.loads(_last_line(path))["id"]
    for name, arguments in _there(FIRST | {"show, the last id": ["show"]}).items():
        last = [own] if name == "show, the last id" else []
        seconds = spread([_until_output([*arguments, str(path), *last]) for _ in range(effort.repeat(10) + 1)][1:])
        yield at_most(f"{name}, {what}, first output", seconds, AT_ONCE, form=".2f", unit=" s")


def _there(commands: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: one for name, one in commands.items() if find_spec(f"rollout_trace.cli.{one[0]}")}


@cache
def _compiled() -> tempfile.TemporaryDirectory[str]:
    """A folder for compiled modules, removed at the end of the process."""
    return tempfile.TemporaryDirectory()


def _start(arguments: Sequence[str], stdout: int) -> subprocess.Popen[bytes]:
    # With compiled modules, as an installed package has them, wherever these may be written.
    compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": _compiled().name}
    return subprocess.Popen(
        [sys.executable, "-m", "rollout_trace", *arguments],
        stdout=stdout,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **compiled},
    )


def _use(arguments: Sequence[str]) -> Used:
    """What a command uses whose output is thrown away. It may find something: its exit code is not looked at."""
    with _start(arguments, subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode in (0, 1), process.returncode
    return Used(used.ru_utime + used.ru_stime, used.ru_maxrss * (1 if sys.platform == "darwin" else 1024))


def _until_output(arguments: Sequence[str]) -> float:
    """Seconds of CPU time of a command until its first byte was read here."""
    with _start(arguments, subprocess.PIPE) as process:
        assert process.stdout is not None
        assert os.read(process.stdout.fileno(), 1)
        process.kill()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return used.ru_utime + used.ru_stime


def _last_line(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(-1_000_000, os.SEEK_END)
        return file.read().splitlines()[-1]
