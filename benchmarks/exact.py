"""What exact turns add to a call: on the calling thread, by the length of the history and by the number of its ids.

Each way has a conversation of its own with the same answers, and goes on by one turn at a time. What is new in a turn
was tokenised before: requests to ``/tokenize`` are counted and timed apart. An agent does something between two calls;
meanwhile the answer is decoded on another thread, and that is waited for, untimed. An agent that asks on at once does
a part of it itself.

Two more ways are of a client that nobody records: as it is, and with the same ids, written before, behind the body that
the SDK has made. What these add is what any client pays that sends the ids; the rest is the recorder's.
"""

from __future__ import annotations

import contextvars
import gc
import json
import random
import threading
import time
from collections.abc import Iterator
from statistics import median
from types import SimpleNamespace
from typing import Any

import httpx2
from openai import OpenAI

import rollout_trace as rt
from benchmarks.clients import ensure_recorded
from benchmarks.payloads import MODEL, compact, text
from benchmarks.report import Effort, Row, at_most, differences, spread
from benchmarks.timing import settle
from rollout_trace.record.decoder import decoder
from rollout_trace.testing.tokenizer import ByteTokenizer

BUDGET = 30.0
"""Microseconds of CPU time that an exact call may add, beside what a client pays that sends the ids."""
TIMED = 12
"""Turns that are timed, behind those of the history."""
_TOKENIZER = ByteTokenizer()
_HELLO = [{"role": "user", "content": "Hello."}]
_WAYS: dict[str, Any] = {"text": "vllm", "exact": rt.Engine("vllm", exact_turns=True), "bare": None, "bare ids": None}


class _Conversation:
    """The requests and answers of one, which every way of asking repeats."""

    def __init__(self, turns: int, prompt: int, answer: int) -> None:
        """``prompt`` and ``answer`` are numbers of ids: of the first prompt, and of each answer."""
        source = random.Random(turns)
        self.turns = turns
        asked, begun = (_TOKENIZER.apply_chat_template(_HELLO, add_generation_prompt=one) for one in (False, True))
        # It ends as prompts of the template do: that is looked at.
        self.ids = [*source.choices(range(1000, 150_000), k=prompt), *begun[len(asked) :]]
        self.sampled = [[*source.choices(range(1000, 150_000), k=answer - 1), _TOKENIZER.eos_token_id]
                        for _ in range(turns)]  # fmt: skip
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": text(300, source)},
                                               {"role": "user", "content": text(300, source)}]  # fmt: skip
        self.said = [f"{turn} {text(200, source)}" for turn in range(turns)]
        self.new = [f"{turn} {text(300, source)}" for turn in range(turns)]
        self.bodies: dict[int, bytes] = {}
        self.fields: dict[int, bytes] = {}
        """The ids of each turn, as the end of the body that was sent."""
        self.turn = 0
        """The one that is asked for: a server that looked for it in the request would be timed too."""

    def request(self, turn: int) -> list[dict[str, Any]]:
        """The messages of a turn."""
        sent = [*self.messages]
        for said, new in zip(self.said[:turn], self.new[:turn], strict=True):
            sent += [{"role": "assistant", "content": said}, {"role": "user", "content": new}]
        return sent

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        """The server: the prompt that it was sent as ids, or as it was the first time."""
        if request.url.path.endswith("/tokenize"):
            asked = json.loads(request.content)
            ids = _TOKENIZER.apply_chat_template(
                asked["messages"], asked.get("tools"), add_generation_prompt=asked["add_generation_prompt"]
            )
            return httpx2.Response(200, json={"tokens": ids})
        turn = self.turn
        if turn not in self.bodies:
            sent = json.loads(request.content).get("kv_transfer_params")
            self.fields[turn] = request.content[request.content.rfind(b',"kv_transfer_params"') :] if sent else b"}"
            self.bodies[turn] = self._body(turn, self.ids if sent is None else sent["prompt_token_ids"])
        return httpx2.Response(200, headers={"content-type": "application/json"}, content=self.bodies[turn])

    def _body(self, turn: int, prompt: list[int]) -> bytes:
        ids = self.sampled[turn]
        choice = {"index": 0, "message": {"role": "assistant", "content": self.said[turn]}, "finish_reason": "stop",
                  "token_ids": ids}  # fmt: skip
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids), "total_tokens": len(prompt) + len(ids)}
        return compact({"id": f"chatcmpl-{turn}", "object": "chat.completion", "created": 1, "model": MODEL,
                        "choices": [choice], "prompt_token_ids": prompt, "usage": usage})  # fmt: skip


class _SendsIds(OpenAI):
    """A client that puts ids, which are written already, behind the body of the SDK."""

    conversation: _Conversation

    def _prepare_request(self, request: Any) -> None:
        field = self.conversation.fields[self.conversation.turn]
        content = b"".join((memoryview(request.content)[:-1], field))
        request.headers["Content-Length"] = str(len(content))
        request.stream, request._content = type(request.stream)(content), content


class _Agent:
    """One conversation as an agent has it, in a trajectory of its own."""

    def __init__(self, conversation: _Conversation, way: str) -> None:
        transport = httpx2.MockTransport(conversation.answer)
        kind = _SendsIds if way == "bare ids" else OpenAI
        self.client: OpenAI = kind(
            api_key="-", base_url="http://bench/v1", http_client=httpx2.Client(transport=transport), max_retries=0
        )
        if isinstance(self.client, _SendsIds):
            self.client.conversation = conversation
        if _WAYS[way] is not None:
            rt.wrap_openai(self.client, engine=_WAYS[way])
        self._context = contextvars.copy_context()
        self._around = rt.trajectory()
        self.trajectory: rt.Trajectory = self._context.run(self._around.__enter__)
        self._conversation = conversation

    def ask(self, turn: int) -> tuple[float, float]:
        """Seconds of CPU time of this thread for one turn, and of the clock."""
        # Past the SDK's types, which copy all messages: 30 ms for 400 of them.
        body: dict[str, Any] = {"model": MODEL, "messages": self._conversation.request(turn)}
        body |= {"logprobs": True, "return_token_ids": True}
        self._conversation.turn = turn
        return self._context.run(self._timed, body)

    def _timed(self, body: dict[str, Any]) -> tuple[float, float]:
        began, cpu_began = time.perf_counter(), time.thread_time()
        self.client.post("/chat/completions", body=body, cast_to=httpx2.Response)
        return time.thread_time() - cpu_began, time.perf_counter() - began

    def close(self) -> None:
        """Ends its trajectory."""
        self._context.run(self._around.__exit__, None, None, None)


def run(effort: Effort) -> Iterator[Row]:
    """Rows of this section."""
    settle()
    for turns in (10, 50, 100):
        yield from _rows(_Conversation(turns + TIMED, 200, 50), effort, limit=BUDGET)
    for prompt in (10_000, 50_000):
        yield from _rows(_Conversation(10 + TIMED, prompt, 50), effort, limit=None)
    yield from _rows(_Conversation(50 + TIMED, 200, 50), effort, limit=None, at_once=True)
    ensure_recorded()


def _rows(conversation: _Conversation, effort: Effort, *, limit: float | None, at_once: bool = False) -> Iterator[Row]:
    n_requests, seconds = _prepared(conversation)
    cpu: dict[str, list[float]] = {name: [] for name in _WAYS}
    wall: dict[str, list[float]] = {name: [] for name in _WAYS}
    order = random.Random(0)
    last: rt.Trajectory | None = None
    for number in range(effort.repeat(12) + 1):
        agents = {name: _Agent(conversation, name) for name in _WAYS}
        names = list(agents)
        gc.collect()
        seen: dict[str, list[tuple[float, float]]] = {name: [] for name in agents}
        for turn in range(conversation.turns):
            order.shuffle(names)
            for name in names:  # As in `interleave`: the collector hits neither way more often.
                seen[name].append(agents[name].ask(turn))
                if not at_once:
                    _wait_for_decoder()
        for name, agent in agents.items():
            if number:
                for found, values in zip((cpu, wall), zip(*seen[name][-TIMED:], strict=True), strict=True):
                    found[name].append(median(values) * 1e6)
            last = agent.trajectory if name == "exact" else last
            agent.close()
    assert last is not None
    turns = [step.exact_turn for step in last.steps[1:]]
    if not all(turn is not None and turn.is_exact and not turn.n_requests for turn in turns):
        raise RuntimeError(f"nothing to measure: {turns}")
    n_ids = max(turn.n_ids or 0 for turn in turns if turn is not None)
    what = f"{conversation.turns - TIMED} turns, {n_ids:,} ids{', asked on at once' if at_once else ''}"
    more = f"on {spread(cpu['text']).middle:,.0f} µs; /tokenize: {n_requests} requests a turn, {seconds * 1e3:.2f} ms"
    whole, bare = ([one - other for one, other in zip(cpu[exact], cpu[text], strict=True)]
                   for exact, text in (("exact", "text"), ("bare ids", "bare")))  # fmt: skip
    yield at_most(f"{what}: added to the calling thread", spread(whole), None, form=".0f", unit=" µs", more=more)
    yield at_most(
        f"{what}: the same, by the clock", differences(wall["exact"], wall["text"]), None, form=".0f", unit=" µs"
    )
    yield at_most(f"{what}: a bare client that sends these ids", spread(bare), None, form=".0f", unit=" µs")
    yield at_most(f"{what}: the recorder's", differences(whole, bare), limit, form=".0f", unit=" µs")


def _wait_for_decoder() -> None:
    done = threading.Event()
    # Of no call: it only tells that the decoder's thread has come so far.
    nobody: Any = SimpleNamespace(faults=[])
    if decoder.submit(nobody, 0, done.set):
        done.wait()


def _prepared(conversation: _Conversation) -> tuple[int, float]:
    """Has all seams tokenised and all answers made; the requests of a turn to ``/tokenize``, and their seconds."""
    agent = _Agent(conversation, "exact")
    for turn in range(conversation.turns):
        agent.ask(turn)
    turns = [step.exact_turn for step in agent.trajectory.steps[2:]]
    agent.close()
    each = [turn for turn in turns if turn is not None]
    return int(median(turn.n_requests for turn in each)), median(turn.seconds for turn in each)
