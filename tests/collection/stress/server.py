"""A scripted server as a program: ``python -m tests.collection.stress.server plan|plain``.

It prints its address. Each line on its standard input is a command, and it prints one line when that is done:

- ``log PATH``: what was asked and answered so far, one JSON line a request;
- ``count``: the number of requests so far;
- ``kill NUMBER [PID]``: with this request (from 0) ends the process of this id by SIGKILL, else the one that sent it;
- ``killed``: waits for that, and says whom it ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollout_trace.testing import Fault, RequestRecord, ScriptedServer
from tests.clients.openai.oracle import told
from tests.collection.stress import plan

SENDER = "x-sender"
"""Header with the id of the process that asks."""


class Server(ScriptedServer):
    """One that can end a connection before its answer, and the process that asks."""

    def __init__(self, planned: bool) -> None:
        super().__init__(self._planned if planned else self._plain, chunk_tokens=4)
        self._asked: Counter[str] = Counter()
        self._guard = threading.Lock()
        self._kill_at: int | None = None
        self._victim: int | None = None
        self._killed = threading.Event()

    def kill(self, at: int, victim: int | None) -> None:
        """Ends a process when this request comes."""
        self._killed.clear()
        self._victim, self._kill_at = victim, at

    def wait_killed(self) -> int:
        """The process that was ended."""
        self._killed.wait()
        return self._victim or 0

    def begin(self, record: RequestRecord) -> None:
        super().begin(record)
        with self._guard:
            if self._kill_at is None or record.index < self._kill_at:
                return
            self._kill_at = None
            self._victim = self._victim or int(record.headers[SENDER])
        try:
            os.kill(self._victim, signal.SIGKILL)
        except ProcessLookupError:
            self._victim = 0
        self._killed.set()

    def _planned(self, request: Mapping[str, Any], record: RequestRecord) -> str | Fault:
        said = request["messages"][-1]["content"]
        call = plan.Call.of(said)
        with self._guard:
            exchange = self._asked[said]
            self._asked[said] += 1
        kind = plan.exchanges(call)[exchange]
        text = plan.answer(call)
        if kind in ("429", "500"):
            return Fault(status=int(kind), headers={"retry-after-ms": "1"})
        if kind == "reset":
            return Fault(status=500, headers={"x-reset": "1"})
        if kind == "cut":
            return Fault(text, cut_after=2 if request.get("stream") else 300)
        return Fault(text, hold=True) if kind == "stall" else text

    def answer(self, record: RequestRecord) -> Any:
        response = super().answer(record)
        if dict(response.headers).get("x-reset"):
            response.before = (_reset,)
        return response

    def _plain(self, request: Mapping[str, Any]) -> str:
        said = request["messages"][-1]["content"]
        return f"the answer to {said!r}" + " and more" * (plan.number(said) % 12)


def _reset() -> None:
    from rollout_trace.clients.loopback.messages import ConnectionCut

    raise ConnectionCut


def described(record: RequestRecord) -> dict[str, Any]:
    """One line of the log."""
    # None of a request whose sender was killed while it was sent.
    asked = None if record.json is None else record.json["messages"][-1]["content"]
    found: dict[str, Any] = {
        "asked": asked,
        "sender": record.headers.get(SENDER),
        "status": record.status,
        "completed": record.completed,
    }
    if record.status == 200 and record.completed:
        found["id"], found["prompt"], choices = told(record)
        choice = choices[0]
        found |= {"text": choice.text, "ids": choice.ids, "logprobs": choice.logprobs}
    return found


def main(kind: str) -> None:
    """Serves until its standard input ends."""
    with Server(kind == "plan") as server:
        print(server.base_url, flush=True)
        for line in sys.stdin:
            command, *arguments = line.split()
            said: object = ""
            if command == "log":
                lines = [json.dumps(described(record)) + "\n" for record in server.requests]
                Path(arguments[0]).write_text("".join(lines))
            elif command == "count":
                said = len(server.requests)
            elif command == "kill":
                server.kill(int(arguments[0]), int(arguments[1]) if arguments[1:] else None)
            elif command == "killed":
                said = server.wait_killed()
            print(said, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
