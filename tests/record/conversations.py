"""Made-up conversations: the bytes that agents and servers exchange, with ids where different servers put them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

Layout = Callable[[random.Random, list[int], list[int], str], str]


def _list(ids: list[int], space: str) -> str:
    return f"[{f',{space}'.join(map(str, ids))}]"


def _entries(own: random.Random, ids: list[int]) -> str:
    return ",".join(f'{{"token":" t{one}","logprob":-{own.random()},"bytes":[32,{one % 256}]}}' for one in ids)


def chat(own: random.Random, prompt: list[int], sampled: list[int], space: str) -> str:
    """As of vLLM: the prompt's ids behind an answer of another length each time."""
    text = "word " * len(sampled)
    return (
        f'{{"id":"chatcmpl-{own.getrandbits(64):x}","choices":[{{"index":0,"message":{{"content":"{text}"}},'
        f'"logprobs":{{"content":[{_entries(own, sampled)}]}},"token_ids":{_list(sampled, space)}}}],'
        f'"usage":{{"prompt_tokens":{len(prompt)}}},"prompt_token_ids":{_list(prompt, space)}}}'
    )


def completion(own: random.Random, prompt: list[int], sampled: list[int], space: str) -> str:
    """Both lists side by side."""
    lists = f'"token_ids":{_list(sampled, space)},"prompt_token_ids":{_list(prompt, space)}'
    return f'{{"id":"cmpl-{own.getrandbits(64):x}","choices":[{{"index":0,"text":"so",{lists}}}]}}'


def generated(own: random.Random, prompt: list[int], sampled: list[int], space: str) -> str:
    """As of SGLang: the ids inside triples, the prompt's first."""
    lists = [",".join(f"[-{one % 7}.5,{one},null]" for one in ids) for ids in (prompt, sampled)]
    return (
        f'{{"text":"so","meta_info":{{"input_token_logprobs":[{lists[0]}],"output_token_logprobs":[{lists[1]}],'
        f'"id":"{own.getrandbits(64):x}"}},"output_ids":{_list(sampled, space)}}}'
    )


def stream(own: random.Random, prompt: list[int], sampled: list[int], space: str) -> str:
    """Events, of which the first has the prompt's ids."""
    head = f'"id":"chatcmpl-{own.getrandbits(64):x}"'
    events = [f'{{{head},"choices":[],"prompt_token_ids":{_list(prompt, space)}}}']
    events += [f'{{{head},"choices":[{{"delta":{{"content":"a"}},"token_ids":[{one}]}}]}}' for one in sampled]
    return "".join(f"data: {one}\n\n" for one in [*events, "[DONE]"])


def words(own: random.Random, prompt: list[int], sampled: list[int], space: str) -> str:
    """No ids at all."""
    text = own.randbytes(len(sampled)).hex()
    return f'{{"id":"{own.getrandbits(64):x}","choices":[{{"message":{{"content":"{text}"}}}}]}}'


LAYOUTS: tuple[Layout, ...] = (chat, completion, generated, stream, words)


@dataclass
class Agent:
    """One conversation so far."""

    layout: Layout
    prompt: list[int]
    messages: list[str]
    space: str
    sends_ids: bool


class Conversations:
    """Agents that take turns, branch, and change what was said; the same ones for the same seed."""

    def __init__(self, seed: int, layouts: tuple[Layout, ...] = LAYOUTS) -> None:
        self.own = random.Random(seed)
        self._layouts = layouts
        self._agents: list[Agent] = []

    def turn(self) -> tuple[bytes, bytes]:
        """The next request and its answer."""
        own = self.own
        agent = self._next()
        agent.messages.append("".join(own.choices("abcdefgh \\n", k=own.choice((10, 300, 3000)))))
        agent.prompt += self._ids()
        sampled = self._ids()
        ids = f',"prompt_token_ids":{_list(agent.prompt, agent.space)}' if agent.sends_ids else ""
        messages = ",".join(f'{{"role":"user","content":"{one}"}}' for one in agent.messages)
        request = f'{{"messages":[{messages}],"model":"m"{ids}}}'
        answer = agent.layout(own, agent.prompt, sampled, agent.space)
        agent.prompt += sampled if own.random() < 0.8 else sampled[: len(sampled) // 2]
        return request.encode(), answer.encode()

    def _ids(self) -> list[int]:
        return [self.own.randrange(150_000) for _ in range(self.own.choice((3, 80, 400)))]

    def _next(self) -> Agent:
        own, agents = self.own, self._agents
        change = own.random()
        if not agents or change < 0.1:
            start = self._ids() + [self.own.randrange(150_000) for _ in range(own.choice((0, 2000, 9000)))]
            agents.append(Agent(own.choice(self._layouts), start, ["hi"], own.choice(("", " ")), own.random() < 0.3))
            return agents[-1]
        agent = own.choice(agents)
        if change < 0.25:
            # A branch, of the whole or of its beginning.
            prompt = agent.prompt[: own.choice((len(agent.prompt), len(agent.prompt) // 2))]
            agents.append(Agent(agent.layout, prompt, list(agent.messages), agent.space, agent.sends_ids))
            return agents[-1]
        if change < 0.4 and agent.prompt:
            at = own.randrange(len(agent.prompt))
            agent.prompt[at : at + own.choice((1, 1, 500))] = own.choice(([7], [], self._ids()))
            agent.messages[own.randrange(len(agent.messages))] = "changed"
        return agent
