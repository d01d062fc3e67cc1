"""What a hop through a proxy adds: wall time of a call over loopback, calls a second, and the proxy's own CPU."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.peers.peers import PROXIES, PROXY_ENVIRONMENT
from benchmarks.peers.process import WorkerFailed, WorkerProcess, clean_environment, python_of
from benchmarks.peers.rounds import three

TIMES = {"small": 30, "large": 12, "stream": 4}
TASK_CALLS = 2
STARTING = 120.0
"""Seconds in which a proxy has to listen."""


class Proxy:
    """A running proxy, or the server itself."""

    def __init__(self, port: int, process: subprocess.Popen[bytes] | None) -> None:
        self.base_url = f"http://127.0.0.1:{port}/v1"
        self._process = process
        self.found: dict[str, dict[str, list[float]]] = {kind: {} for kind in TIMES}
        self.passed: dict[str, str] = {}

    def cpu(self) -> float:
        """Seconds of CPU that its process has used; 0 where there is none."""
        if self._process is None:
            return 0.0
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(rounds: int, folder: Path, progress: Callable[[str], None]) -> dict[str, Any]:
    """Medians and quartiles by proxy and kind of call; the first round is thrown away."""
    worker = WorkerProcess(PROXY_ENVIRONMENT, "bare", folder)
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        stack.callback(worker.stop)
        upstream = stack.enter_context(_server("stub", folder))
        direct = Proxy(int(upstream.base_url.split(":")[2].split("/")[0]), None)
        proxies = {"direct": direct}
        for name in PROXIES:
            try:
                proxies[name] = stack.enter_context(_server(name, folder, upstream.base_url))
            except WorkerFailed as failure:
                found[name] = {"missing": str(failure)}
        order = random.Random(0)
        for number in range(rounds + 1):
            names = list(proxies)
            order.shuffle(names)
            for kind in TIMES:
                for name in names:
                    _measure(worker, proxies[name], kind, number)
            progress(f"proxies, round {number} of {rounds}")
        for name, proxy in proxies.items():
            found[name] = {kind: _summary(proxy, direct, kind) for kind in TIMES}
    return found


def _measure(worker: WorkerProcess, proxy: Proxy, kind: str, number: int) -> None:
    before = proxy.cpu()
    block = worker.ask("hop", kind=kind, base_url=proxy.base_url, times=TIMES[kind])
    cpu = (proxy.cpu() - before) / (TIMES[kind] + 1)
    proxy.passed[kind] = block["passed"]
    values = {"wall": block["wall"], "proxy cpu": cpu}
    if kind != "stream":
        values |= worker.ask("hop_tasks", kind=kind, base_url=proxy.base_url, calls=TASK_CALLS)
    if number:
        for measure, value in values.items():
            proxy.found[kind].setdefault(measure, []).append(value)


def _summary(proxy: Proxy, direct: Proxy, kind: str) -> dict[str, Any]:
    found, bare = proxy.found[kind], direct.found[kind]
    summary: dict[str, Any] = {measure: three(values) for measure, values in found.items()}
    summary["added"] = three([one - other for one, other in zip(found["wall"], bare["wall"], strict=True)])
    summary["passed"] = proxy.passed[kind]
    return summary


@contextmanager
def _server(name: str, folder: Path, upstream: str = "") -> Iterator[Proxy]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    if name == "litellm":
        command = [str(python_of(PROXY_ENVIRONMENT).parent / "litellm"), "--port", str(port), "--host", "127.0.0.1"]
        command += ["--config", str(_litellm_config(folder, upstream)), "--telemetry", "False"]
    else:
        command = [str(python_of(PROXY_ENVIRONMENT)), "-m", "benchmarks.peers.proxy_server", name, str(port)]
        command += [upstream.removesuffix("/v1")] if upstream else []
    settings = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it fetches a price list
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # it listens on this machine alone
        "LITELLM_LOG": "ERROR",
        "LITELLM_MODE": "PRODUCTION",
    }
    with (folder / f"proxy-{name}.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**clean_environment(), **settings},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        _wait(process, port)
        yield Proxy(port, process)
    finally:
        process.terminate()
        process.wait()


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + STARTING
    while time.monotonic() < until:
        if process.poll() is not None:
            raise WorkerFailed(f"it ended with {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise WorkerFailed(f"it did not listen within {STARTING:.0f} s")


def _litellm_config(folder: Path, upstream: str) -> Path:
    """Models of the three kinds, without retries."""
    models = [
        {
            "model_name": kind,
            "litellm_params": {"model": f"hosted_vllm/{kind}", "api_base": upstream, "api_key": "-", "max_retries": 0},
        }
        for kind in TIMES
    ]
    path = folder / "litellm.yaml"
    path.write_text(json.dumps({"model_list": models, "litellm_settings": {"num_retries": 0}}))
    return path
