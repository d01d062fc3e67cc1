"""`rollout_trace.testing` costs nothing that an agent's tests do not need."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ["anthropic", "brotli", "httpx", "httpx2", "numpy", "openai", "pytest", "zstandard"]


def test_nothing_heavy_is_imported() -> None:
    code = f"import sys, rollout_trace.testing; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
