"""`rollout_trace.testing` costs nothing that an agent's tests do not need."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ["anthropic", "brotli", "httpx", "httpx2", "numpy", "openai", "pytest", "zstandard"]


def test_nothing_heavy_is_imported() -> None:
    code = f"import sys, rollout_trace.testing; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_a_scripted_server_needs_the_standard_library_alone() -> None:
    code = (
        "import sys, json, urllib.request\n"
        "from rollout_trace.testing import Fault, Latency, ScriptedServer\n"
        "with ScriptedServer(['hi'], latency=Latency(), faults={2: Fault(status=503)}) as server:\n"
        "    body = json.dumps({'messages': [{'role': 'user', 'content': 'a'}]}).encode()\n"
        "    urllib.request.urlopen(server.base_url + '/chat/completions', body).read()\n"
        f"print([name for name in {[*HEAVY, 'jinja2', 'msgspec', 'tokenizers']} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
