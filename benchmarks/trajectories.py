"""Recorded trajectories: single turns, and a long agent whose prompt grows by what was said and what tools answered."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

import rollout_trace as rt
from benchmarks.clients import Caller, post, sync_client
from benchmarks.payloads import Exchange, compact, large, sampled, text, token_ids, unary, usage
from rollout_trace.data.model import new_step
from rollout_trace.data.tokens import TokenStore

SAMPLED = 200
"""Tokens of a long agent's turn that the model sampled, with their logprobs."""
READ = 300
"""Tokens of the turn that it read."""
_CHARACTERS_PER_TOKEN = 3.65


class LongAgent:
    """Gives the exchanges of its turns, the prompt of each the exact continuation of the one before."""

    def __init__(self, seed: int, read: int = READ) -> None:
        self.distinct_tokens = 0
        """Tokens read and sampled so far, each counted once."""
        self.distinct_text = 0
        """Bytes of the messages so far as JSON, each counted once."""
        self.bytes_sent = 0
        """Bodies of all turns so far, both ways."""
        self._messages: list[dict[str, Any]] = []
        self._new = read
        self._prompt = bytearray()
        self._random = random.Random(seed)

    def turn(self) -> Exchange:
        """The next turn."""
        said = text(int(self._new * _CHARACTERS_PER_TOKEN), self._random)
        if self._messages:
            self._say({"role": "tool", "content": said, "tool_call_id": f"call_{len(self._messages)}"})
        else:
            self._say({"role": "user", "content": said})
        self._read(token_ids(self._new, self._random.getrandbits(32)))
        seed = self._random.getrandbits(32)
        exchange = Exchange("long agent", list(self._messages), (self._answer(seed),))
        self.bytes_sent += self.distinct_text + len(exchange.pieces[0])
        words, ids, _ = sampled(SAMPLED, seed)
        self._say({"role": "assistant", "content": "".join(words)})
        self._read(ids)
        return exchange

    def _say(self, message: dict[str, Any]) -> None:
        self._messages.append(message)
        self.distinct_text += len(compact(message))

    def _read(self, ids: Sequence[int]) -> None:
        self._prompt += b"," * bool(self._prompt) + ",".join(map(str, ids)).encode()
        self.distinct_tokens += len(ids)

    def _answer(self, seed: int) -> bytes:
        # Encoding 100,000 ids anew in each turn would take longer than the call.
        body = unary("", [], [], SAMPLED, seed).pieces[0]
        body = body.replace(b'"prompt_token_ids":[]', b'"prompt_token_ids":[%s]' % self._prompt)
        return body.replace(compact(usage(0, SAMPLED))[:-1], compact(usage(self.distinct_tokens, SAMPLED))[:-1])


def single_turns(count: int) -> list[rt.Trajectory]:
    """Trajectories of one 63 kB call each."""
    call = Caller([large(seed) for seed in range(50)], recorded=True)
    trajectories = []
    for _ in range(count):
        with rt.trajectory(task="bench/1") as trajectory:
            call()
        trajectories.append(trajectory)
    return trajectories


def many_turns(turns: int, seed: int = 0) -> rt.Trajectory:
    """The steps of a long agent as the recorder leaves them, made without its calls: a thousand take a moment."""
    store, random = TokenStore(), np.random.default_rng(seed)
    steps, whole = [], np.empty(0, np.int32)
    for turn in range(turns):
        read, said = (random.integers(0, 150_000, count, np.int32) for count in (READ, SAMPLED))
        prompt = np.concatenate([whole, read])
        asked, answered = store.add(prompt, said)
        whole = np.concatenate([prompt, said])
        logprobs = -random.random(SAMPLED, np.float32)
        logprobs.flags.writeable = False
        facts = {"id": f"{turn}", "call_id": f"{turn}", "index": turn, "token_source": "engine", "logprobs": logprobs}
        steps.append(new_step({**facts, "prompt_token_ids": asked, "completion_token_ids": answered}))
    store.finish()
    return rt.Trajectory(steps=steps, reward=1.0)


def long_agent(turns: int, seed: int = 0) -> rt.Trajectory:
    """The trajectory of a long agent."""
    agent = LongAgent(seed)
    exchanges = [agent.turn() for _ in range(turns)]
    client = rt.wrap_openai(sync_client(iter(exchanges)))
    with rt.trajectory(name="long agent", task=str(seed)) as trajectory:
        for exchange in exchanges:
            post(client, exchange)
    return trajectory
