"""Functions and programs that child processes run: found there by their import path. None imports rollout_trace."""

from __future__ import annotations

import os
import subprocess
import sys


def ask(seed: int, address: str | None = None) -> int:
    """Makes a model call as an unmodified agent does, and returns its process."""
    # Imported here: after the process has begun.
    import httpx

    url = f"{address or os.environ['MODEL_ADDRESS']}/chat/completions"
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "seed": seed}
    httpx.post(url, json=body, timeout=60).raise_for_status()
    return os.getpid()


def modules() -> list[str]:
    """What this process has imported."""
    return list(sys.modules)


def fail(seed: int, address: str | None = None) -> None:
    """Fails after a call."""
    ask(seed, address)
    raise ValueError("of the agent")


def nested(seed: int, address: str) -> None:
    """Has a process of its own make the call."""
    environment = {**os.environ, "MODEL_ADDRESS": address}
    subprocess.run([sys.executable, "-m", "tests.process.agents", str(seed)], env=environment, check=True)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        ask(int(argument))
