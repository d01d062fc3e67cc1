"""Starts an inference server on this machine, on a free port of 127.0.0.1, and ends it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from rollout_trace.wire.profiles import EngineName
from tests.live_engines.gguf import write_gguf

TINY_MODEL = Path(__file__).parent.parent / "data" / "tiny-model"
MODEL = "tiny"
PATIENCE = 300.0
"""Seconds that a server may take until it answers: vLLM imports for a minute or two."""

_VLLM_OPTIONS = (
    *("--dtype", "float32", "--max-model-len", "2048", "--max-logprobs", "20", "--enforce-eager"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--enable-scale-out"),
)
_VLLM_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",
    "HF_HUB_OFFLINE": "1",
}


class NotInstalled(Exception):
    """The engine is not there; the message says what to do."""


@dataclass(frozen=True)
class Server:
    """A server that answers."""

    engine: EngineName
    url: str
    """Without the path."""

    @property
    def base_url(self) -> str:
        """For clients of the openai SDK."""
        return f"{self.url}/v1"


@contextmanager
def started(engine: EngineName, folder: Path, port: int | None = None, options: Sequence[str] = ()) -> Iterator[Server]:
    """The engine, while the block runs, on a free port where none is given. Its output goes into the folder.

    The options are added to the command.

    Raises:
        NotInstalled: it is not to be found.
        RuntimeError: it ended, or did not answer in time.
    """
    port = port or free_port()
    command = [*_command(engine, folder, port), *options]
    log = folder / f"{engine}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **_VLLM_ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            server = Server(engine, f"http://127.0.0.1:{port}")
            _wait(process, server, log)
            yield server
        finally:
            _end(process)


def _command(engine: EngineName, folder: Path, port: int) -> list[str]:
    address = ["--host", "127.0.0.1", "--port", str(port)]
    if engine == "vllm":
        path = _path("ROLLOUT_TRACE_VLLM", "vllm", "vllm")
        start = [path, "-m", "vllm.entrypoints.cli.main"] if _is_python(path) else [path]
        return [*start, "serve", str(TINY_MODEL), "--served-model-name", MODEL, *_VLLM_OPTIONS, *address]
    path = _path("ROLLOUT_TRACE_LLAMA_SERVER", "llama-server", "llama-server")
    model = os.environ.get("ROLLOUT_TRACE_GGUF")
    if not model:
        model = str(folder / "tiny.gguf")
        write_gguf(TINY_MODEL, Path(model))
    if _is_python(path):
        return [path, str(Path(__file__).parent / "llama_program.py"), model, MODEL, "127.0.0.1", str(port)]
    return [path, "--model", model, "--alias", MODEL, "--ctx-size", "4096", "--parallel", "2", "--jinja", *address]


def _is_python(path: str) -> bool:
    return Path(path).name.startswith("python")


def _path(variable: str, name: str, engine: str) -> str:
    path = os.environ.get(variable) or shutil.which(name)
    if path is None:
        raise NotInstalled(f"{engine} is not on PATH, and {variable} does not name it: see docs/engines.md")
    return path


def free_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait(process: subprocess.Popen[bytes], server: Server, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urlopen(f"{server.url}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (URLError, OSError):
            pass
        time.sleep(0.2)
    state = "still does not answer" if process.poll() is None else f"ended with {process.returncode}"
    tail = log.read_text(errors="replace")[-3000:]
    raise RuntimeError(f"{server.engine} {state}; the end of its output:\n{tail}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the process and those that it started: they are a session of their own."""
    for kind, patience in ((signal.SIGTERM, 30.0), (signal.SIGKILL, 10.0)):
        try:
            os.killpg(process.pid, kind)
        except ProcessLookupError:
            break
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue
    process.wait(10)
