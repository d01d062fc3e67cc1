"""What is measured in processes of its own: importing, and memory."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.peers import Peer
from benchmarks.peers.process import WorkerFailed, WorkerProcess, clean_environment, python_of
from benchmarks.peers.rounds import three

_PROGRAM = """
import os, time
os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"  # else openai's models would import a peer that is one
import openai
openai.OpenAI, openai.AsyncOpenAI, openai.resources.chat.completions
del os.environ["PYDANTIC_DISABLE_PLUGINS"]
began = time.process_time()
{imports}
seconds = time.process_time() - began
os.write(1, b"seconds " + str(seconds).encode())
"""


def imports(
    peers: Sequence[Peer], rounds: int, folder: Path, progress: Callable[[str], None]
) -> dict[str, list[float]]:
    """CPU seconds of importing what a user of each peer imports, after openai; the first round is thrown away."""
    lines = {peer.name: _imports_of(peer.name) for peer in peers if peer.counts}
    found: dict[str, list[float]] = {name: [] for name in lines}
    for number in range(rounds + 1):
        for peer in peers:
            if lines.get(peer.name):
                seconds = _imported(peer.environment, lines[peer.name], folder)
                if number and seconds is not None:
                    found[peer.name].append(seconds)
        progress(f"imports, round {number} of {rounds}")
    return {name: three(values) for name, values in found.items() if values}


def _imports_of(name: str) -> str:
    """The line of the adapter: read, since the adapter cannot be imported here."""
    module = Path(__file__).parent / "adapters" / f"{name.replace('-', '_')}.py"
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "imports" for t in node.targets):
            found: str = ast.literal_eval(node.value)
            return found
    return ""


def _imported(environment: str, line: str, folder: Path) -> float | None:
    command = [str(python_of(environment)), "-c", _PROGRAM.format(imports=line)]
    done = subprocess.run(command, cwd=folder, env=clean_environment(), capture_output=True, text=True, check=False)
    return float(done.stdout.rpartition("seconds ")[2]) if done.returncode == 0 else None


def memory(peers: Sequence[Peer], calls: int, folder: Path, progress: Callable[[str], None]) -> dict[str, Any]:
    """MB by which a process grows that keeps so many 63 kB calls, beyond the bare client's."""
    found: dict[str, Any] = {}
    bare: dict[str, float] = {}
    for peer in peers:
        if not (peer.memory and peer.counts):
            continue
        try:
            if peer.environment not in bare:
                bare[peer.environment] = _grown(peer.environment, "bare", calls, folder)["grown"]
            grown = _grown(peer.environment, peer.name, calls, folder)
            if grown["counted"] < calls:
                raise WorkerFailed(f"{grown['counted']} of {calls} calls were recorded")
            found[peer.name] = round(grown["grown"] - bare[peer.environment], 1)
        except WorkerFailed as failure:
            found[peer.name] = str(failure)
        progress(f"memory, {peer.name}: {found[peer.name]}")
    return found


def _grown(environment: str, adapter: str, calls: int, folder: Path) -> Any:
    worker = WorkerProcess(environment, adapter, folder)
    try:
        return worker.ask("memory", calls=calls)
    finally:
        worker.stop()
