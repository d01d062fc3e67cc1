"""Makes calls, each in a process of its own, and prints what came of it and the most memory that it took.

    python bounded_call.py < CALLS

Each line is a call, ``[ADDRESS, KIND, MAX_CALL_BYTES, REQUEST_BYTES]``, and has its line of output. The server's answer
is read as it arrives, and not kept. With 0 for MAX_CALL_BYTES the client is not wrapped. The processes are forks of
this one, which has imported all that they need, and have ten minutes.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import traceback
from hashlib import sha256
from pathlib import Path
from typing import Any

import openai

import rollout_trace as rt

# Loaded before the memory is measured: what a step is made of.
import rollout_trace.wire.chat
import rollout_trace.wire.places


def peak() -> int:
    """The most memory so far, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        # Not what `getrusage` gives on Linux: that begins with the memory of the process that started this one.
        return int(status.read_text().partition("VmHWM:")[2].split()[0]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def main(address: str, kind: str, limit: int, request_bytes: int) -> dict[str, Any]:
    with openai.OpenAI(base_url=address, api_key="none", max_retries=0) as client:
        if limit:
            rt.wrap_openai(client, max_call_bytes=limit)
        messages: list[Any] = [{"role": "user", "content": "x" * request_bytes}]
        digest, size, before = sha256(), 0, peak()
        with rt.trajectory() as trajectory:
            create: Any = client.chat.completions.with_streaming_response.create
            with create(model="m", messages=messages, stream="stream" in kind) as response:
                for part in response.http_response.iter_raw():
                    digest.update(part)
                    size += len(part)
            steps = [
                {
                    "status": step.status,
                    "issue": step.token_issue and step.token_issue.message,
                    "content": step.completion and step.completion.content,
                }
                for step in trajectory.steps
            ]
    return {"size": size, "digest": digest.hexdigest(), "steps": steps, "memory": peak() - before}


def answered(call: list[Any]) -> dict[str, Any]:
    """What came of a call, or the traceback under the name ``failed``."""
    try:
        return main(*call)
    except Exception:
        return {"failed": traceback.format_exc()}


if __name__ == "__main__":
    for line in sys.stdin:
        child = os.fork()
        if not child:
            signal.alarm(600)
            print(json.dumps(answered(json.loads(line))), flush=True)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if status:
            print(json.dumps({"failed": f"status {status}"}), flush=True)
