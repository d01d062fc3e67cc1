"""The scenarios of the table of behaviour: what the server does, and the cells that come of what was recorded."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import checks
from benchmarks.peers.checks import Cell, Recorded, Sent
from rollout_trace.testing import Fault, ReplayServer, Reply, ScriptedServer

RECORDED = Path(__file__).parents[2] / "tests" / "data" / "wire_vllm_extras.jsonl.xz"
EXTRAS = "moe_chat_plp1"
CHUNK = 4
CUT_AFTER = 5
"""Events: the first has no tokens."""
FAILURE = {"error": {"message": checks.FIRST_FAILURE, "type": "InternalServerError", "code": 500}}
Probe = Callable[[str, str], dict[str, Any]]
"""Runs a scenario against an address in a worker."""


def cells(probe: Probe, reward: Any) -> dict[str, Cell]:
    """All cells of one peer, by the name of their column."""
    found: dict[str, Cell] = {}
    for kind, make in (("unary", _Unary), ("stream", _Stream)):
        recorded, answer = make().run(probe, kind)
        prefix = "" if kind == "unary" else "streamed: "
        found[f"{prefix}prompt ids"] = recorded.ids(answer.prompt)
        found[f"{prefix}completion ids"] = recorded.ids(answer.completion, answer.pieces)
        found[f"{prefix}logprobs"] = recorded.logprobs(answer.logprobs)
    found["n = 2"] = checks.choices(*_Choices().run(probe, "choices"))
    found["extras"] = _extras(probe)
    found["stream cut by the server"] = checks.ended_early(*_Cut().run(probe, "cut"))
    found["stream closed early"] = checks.ended_early(*_Stream().run(probe, "closed"))
    found["HTTP 500"] = checks.failed(_Failing().run(probe, "error")[0])
    found["500, then 200"] = checks.retried(_Retried().run(probe, "retry")[0])
    found["stream read after the block"] = checks.late(*_Stream().run(probe, "late"))
    found["thread"] = checks.in_trace(_Unary().run(probe, "thread")[0], "thread", 1)
    found["thread pool"] = checks.in_trace(_Unary().run(probe, "pool")[0], "pool", 4)
    found["two tasks at once"] = checks.own_traces(_Unary().run(probe, "tasks")[0])
    found["messages changed after the call"] = checks.as_sent(_Unary().run(probe, "changed")[0])
    found["reward not given is None"] = checks.reward(reward)
    return found


class _Unary:
    """A server that answers."""

    streamed = False
    answers: Any = Reply("Said in more than twenty-four tokens.")

    def run(self, probe: Probe, scenario: str) -> tuple[Recorded, Sent]:
        """What was recorded, beside what was sent."""
        with ScriptedServer(lambda request: self.answers, chunk_tokens=CHUNK) as server:
            found = probe(scenario, server.base_url)
            server.wait_idle()
            body = server.requests[-1].response_body
        answer = Sent([], [], []) if server.requests[-1].status != 200 else checks.sent(body, streamed=self.streamed)
        return Recorded(found["records"]), answer


class _Stream(_Unary):
    streamed = True


class _Cut(_Stream):
    answers = Fault(_Unary.answers, cut_after=CUT_AFTER)


class _Failing(_Unary):
    answers = Fault(status=500, body=FAILURE)


class _Retried(_Unary):
    answers: Any = (_Failing.answers, _Unary.answers)


class _Choices(_Unary):
    """Two choices, of different tokens."""

    def run(self, probe: Probe, scenario: str) -> tuple[Recorded, Sent]:
        texts = ["one answer to the question", "another answer, which is longer"]
        with ScriptedServer(lambda request, index: texts[index]) as server:
            found = probe(scenario, server.base_url)
            server.wait_idle()
            return Recorded(found["records"]), checks.sent(server.requests[-1].response_body, streamed=False)


def _extras(probe: Probe) -> Cell:
    """A recorded answer of vLLM with routed experts and prompt logprobs."""
    with ReplayServer(RECORDED) as server:
        found = Recorded(probe("extras", server.base_url_for(EXTRAS))["records"])
        answer = json.loads(server.exchanges[EXTRAS].response)
    experts = answer["choices"][0]["routed_experts"]
    scores = [next(iter(entry.values()))["logprob"] for entry in answer["prompt_logprobs"] if entry]
    kept = {
        "routed experts": experts in found.text or _nested(experts) in "".join(found.text.split()),
        "prompt logprobs": found.logprobs(scores)[0] == "yes",
    }
    return checks.extras(kept)


def _nested(experts: str) -> str:
    """The array of experts as nested lists without spaces."""
    return json.dumps(np.load(io.BytesIO(base64.b64decode(experts))).tolist(), separators=(",", ":"))
