"""The ids of a prompt are read from where they differ from those of earlier answers: the steps are the same ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_trace.data.model import Step, shared
from rollout_trace.data.tokens import PromptIds, Span, TokenStore
from rollout_trace.wire.protocols import decoder_of
from rollout_trace.wire.request import read
from rollout_trace.wire.steps import Stores, exchange_of, steps_from
from rollout_trace.wire.taken_ids import take
from tests.amount import cuts, examples
from tests.fuzz.continued import check_continued, comparing
from tests.fuzz.run import corpus

Body = dict[str, Any]
"""An answer; ``IDS`` stands in it for the ids of its prompt."""
IDS = "the ids"
LONG_PROMPT = [(at * 7919) % 152_000 for at in range(300)]
SAID = {"role": "assistant", "content": "a"}
HEAD: Body = {"id": "i", "model": "m"}
DONE: Body = {"index": 0, "finish_reason": "stop"}
CHAT: Body = {**DONE, "message": SAID, "token_ids": [7, 8]}
ASKED: Body = {"model": "m", "return_token_ids": True}
NVEXT = {"extra_fields": ["engine_data"]}


def usage(prompt: int, completion: int = 2) -> Body:
    return {"prompt_tokens": prompt, "completion_tokens": completion}


def chat(**more: Any) -> Callable[[int], list[Body]]:
    return lambda size: [{**HEAD, "choices": [CHAT], "usage": usage(size), **more}]


def of_choice(**more: Any) -> Callable[[int], list[Body]]:
    return lambda size: [{**HEAD, "choices": [{**CHAT, **more}], "usage": usage(size)}]


def chunks(first: Body, *, of_choice: Body | None = None) -> Callable[[int], list[Body]]:
    def answer(size: int) -> list[Body]:
        delta = {"index": 0, "delta": {"role": "assistant", "content": ""}, **(of_choice or {})}
        last = {**DONE, "delta": {"content": "a"}, "token_ids": [7, 8]}
        return [
            {**HEAD, "choices": [delta], **first},
            {**HEAD, "choices": [last]},
            {**HEAD, "choices": [], "usage": usage(size)},
        ]

    return answer


def response(size: int) -> list[Body]:
    content = [{"type": "output_text", "text": "a"}]
    items = [{"type": "message", "role": "assistant", "content": content}]
    counts = {"input_tokens": size, "output_tokens": 2}
    messages = {"input_messages": [{"tokens": IDS}], "output_messages": [{"tokens": [7, 8]}]}
    return [{**HEAD, "status": "completed", "output": items, "usage": counts, **messages}]


MESSAGE: Body = {**HEAD, "type": "message", "role": "assistant", "content": [{"type": "text", "text": "a"}],
                 "stop_reason": "end_turn"}  # fmt: skip
TEXT: Body = {**DONE, "text": "a", "token_ids": [7, 8]}
SAMPLED = {"text": "a", "output_ids": [7, 8]}
META = {"id": "i", "finish_reason": {"type": "stop"}, "completion_tokens": 2}

PLACES: dict[str, tuple[str, Body, Callable[[int], list[Body]], bool]] = {
    "chat": ("openai.chat", ASKED, chat(prompt_token_ids=IDS), False),
    "chat, with its fields in another order": (
        "openai.chat",
        ASKED,
        lambda size: [{"prompt_token_ids": IDS, "usage": usage(size), "choices": [CHAT], **HEAD}],
        False,
    ),
    "chat, with unknown fields": ("openai.chat", ASKED, chat(prompt_token_ids=IDS, other={"a": 1}), False),
    "chat, with scores": (
        "openai.chat",
        {**ASKED, "prompt_logprobs": 0},
        lambda size: chat(prompt_token_ids=IDS, prompt_logprobs=[None] * size)(size),
        False,
    ),
    "chat, streamed": ("openai.chat", {**ASKED, "stream": True}, chunks({"prompt_token_ids": IDS}), True),
    "chat, two choices": (
        "openai.chat",
        {**ASKED, "n": 2},
        lambda size: [
            {**HEAD, "choices": [CHAT, {**CHAT, "index": 1}], "usage": usage(size, 4), "prompt_token_ids": IDS}
        ],
        False,
    ),
    "SGLang's chat": ("openai.chat", ASKED, of_choice(prompt_token_ids=IDS), False),
    "SGLang's chat, streamed": (
        "openai.chat",
        {**ASKED, "stream": True},
        chunks({}, of_choice={"prompt_token_ids": IDS}),
        True,
    ),
    "SGLang's sglext": (
        "openai.chat",
        {"return_input_ids_in_sglext": True, "return_output_ids_in_sglext": True},
        chat(sglext={"input_ids": IDS, "output_ids": [[7, 8]]}),
        False,
    ),
    "Fireworks' raw_output": ("openai.chat", ASKED, of_choice(raw_output={"prompt_token_ids": IDS, "b": 1}), False),
    "Dynamo's nvext": (
        "openai.chat",
        {"nvext": NVEXT},
        chat(nvext={"engine_data": {"prompt_token_ids": IDS}}),
        False,
    ),
    "chat, twice": ("openai.chat", ASKED, of_choice(prompt_token_ids=IDS, raw_output={"prompt_token_ids": IDS}), False),
    "chat, in what goes to the extras": ("openai.chat", ASKED, chat(metrics={"prompt_token_ids": IDS}), False),
    "completions": (
        "openai.completions",
        {**ASKED, "prompt": "p", "n": 2},
        lambda size: [
            {
                **HEAD,
                "choices": [{**TEXT, "prompt_token_ids": IDS}, {**TEXT, "index": 1, "prompt_token_ids": IDS}],
                "usage": usage(size, 4),
            }
        ],
        False,
    ),
    "completions, streamed": (
        "openai.completions",
        {**ASKED, "prompt": "p", "stream": True},
        lambda size: [
            {**HEAD, "choices": [{**TEXT, "prompt_token_ids": IDS}]},
            {**HEAD, "choices": [], "usage": usage(size)},
        ],
        True,
    ),
    "vLLM's generate": (
        "vllm.generate",
        {"token_ids": [1], "sampling_params": {}},
        lambda size: [
            {"id": "i", "choices": [{**DONE, "token_ids": [7, 8]}], "prompt_token_ids": IDS, "usage": usage(size)}
        ],
        False,
    ),
    "SGLang's generate": (
        "sglang.generate",
        {"text": "p", "sampling_params": {}},
        lambda size: [{**SAMPLED, "meta_info": {**META, "prompt_token_ids": IDS, "prompt_tokens": size}}],
        False,
    ),
    "SGLang's generate, streamed": (
        "sglang.generate",
        {"text": "p", "sampling_params": {}, "stream": True},
        lambda size: [
            {**SAMPLED, "meta_info": {**META, "prompt_token_ids": IDS, "prompt_tokens": size}} for _ in range(2)
        ],
        True,
    ),
    "responses": ("openai.responses", {"model": "m", "input": "p", "enable_response_messages": True}, response, False),
    "messages": (
        "anthropic.messages",
        {**ASKED, "max_tokens": 9},
        lambda size: [{**MESSAGE, "prompt_token_ids": IDS, "token_ids": [7, 8], "logprobs": [-1.0, -2.0]}],
        False,
    ),
    "vLLM in the process": (
        "vllm.llm",
        {"model": "m", "prompt": "p"},
        lambda size: [
            {"id": "0", "prompt_token_ids": IDS, "choices": [{**DONE, "text": "a", "token_ids": [7, 8]}]}
        ],
        False,
    ),
}  # fmt: skip
REQUESTS: dict[str, tuple[str, Body, Callable[[int], list[Body]], bool]] = {
    "vLLM's generate, asked": (
        "vllm.generate",
        {"token_ids": IDS, "sampling_params": {}},
        lambda size: [{"request_id": "i", "choices": [{**DONE, "token_ids": [7, 8]}], "usage": usage(size)}],
        False,
    ),
    "SGLang's generate, asked": (
        "sglang.generate",
        {"input_ids": IDS, "sampling_params": {}},
        lambda size: [{**SAMPLED, "meta_info": {**META, "prompt_tokens": size}}],
        False,
    ),
    "completions, asked": (
        "openai.completions",
        {"model": "m", "prompt": IDS},
        lambda size: [{**HEAD, "choices": [TEXT], "usage": usage(size)}],
        False,
    ),
    "completions, asked two": (
        "openai.completions",
        {"model": "m", "prompt": [IDS, IDS]},
        lambda size: [{**HEAD, "choices": [TEXT, {**TEXT, "index": 1}], "usage": usage(2 * size, 4)}],
        False,
    ),
    "vLLM's chat, served": (
        "openai.chat",
        {**ASKED, "kv_transfer_params": {"prompt_token_ids": IDS}},
        chat(prompt_token_ids=IDS),
        False,
    ),
    "vLLM's chat, not served": (
        "openai.chat",
        {**ASKED, "kv_transfer_params": {"prompt_token_ids": IDS}},
        chat(prompt_token_ids=LONG_PROMPT),
        False,
    ),
    "SGLang's chat, asked": ("openai.chat", {**ASKED, "input_ids": IDS}, chat(), False),
    "vLLM in the process, asked": (
        "vllm.llm",
        {"model": "m", "prompt": IDS},
        lambda size: [{"id": "0", "choices": [{**DONE, "text": "a", "token_ids": [7, 8]}]}],
        False,
    ),
}
"""Requests that have the ids themselves."""
TAKEN = [place for place in PLACES if place not in ("chat, twice", "chat, in what goes to the extras")]
"""Where all lists become the prompt's ids."""


def sent(bodies: Sequence[Body], ids: str, *, streamed: bool) -> bytes:
    """Bodies as they are sent, with ids as this text."""
    texts = [json.dumps(one, separators=(",", ":")).replace(json.dumps(IDS), ids) for one in bodies]
    if not streamed:
        return texts[0].encode()
    return "".join(f"data: {one}\n\n" for one in [*texts, "[DONE]"]).encode()


def as_it_came(protocol: str, request: bytes, body: bytes, *, streamed: bool) -> list[Step]:
    """The steps of an answer of which nothing is taken, alone in its trajectory."""
    stores, decode = Stores(), decoder_of(protocol)
    assert decode is not None
    facts = read(protocol, request, stores.messages, stores.tools)
    return steps_from("c", protocol, facts, decode(body, streamed=streamed, status=200, request=facts), stores)


class Agent:
    """Decodes answers to prompts, as one trajectory, and compares each with the same one alone."""

    def __init__(self, place: str) -> None:
        self.protocol, asked, self._answer, self._streamed = {**PLACES, **REQUESTS}[place]
        self.asked = asked if "prompt" in asked else {"messages": [], **asked}
        self.stores = Stores()

    def turn(self, ids: str, size: int | None = None, status: int = 200) -> list[Step]:
        """The steps of an answer to a prompt of which this is the text, its length as the usage has it."""
        bodies = self._answer(ids.count(",") + 1 if size is None else size)
        body = sent(bodies, f"[{ids}]", streamed=self._streamed)
        request = sent([self.asked], f"[{ids}]", streamed=False)
        kind = "text/event-stream" if self._streamed else "application/json"
        steps, _ = exchange_of("c", self.protocol, request, body, content_type=kind, status=status, stores=self.stores)
        if status == 200:
            assert steps == as_it_came(self.protocol, request, body, streamed=self._streamed)
        return steps


def text(ids: Sequence[int]) -> str:
    return ",".join(map(str, ids))


def read_anew(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of ids that are read of each prompt from now on."""
    counts: list[int] = []
    of_text = TokenStore.read

    def counted(store: TokenStore, *args: Any) -> PromptIds | None:
        found = of_text(store, *args)
        if found is not None:
            counts.append(len(found.ids))
        return found

    monkeypatch.setattr(TokenStore, "read", counted)
    return counts


@pytest.mark.parametrize("place", PLACES)
def test_only_what_is_new_is_read_of_a_prompt_in_every_place(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts, agent = read_anew(monkeypatch), Agent(place)
    agent.turn(text(LONG_PROMPT))
    first = [*counts]
    assert set(first) == {300}
    counts.clear()
    # With the first one's completion, and three more: the last of them ends without a comma, and is read.
    agent.turn(text([*LONG_PROMPT, 7, 8, 11, 12, 13]))
    assert counts == [3 if place in TAKEN or place == "chat, twice" else 305 for _ in first]
    agent.turn(text(LONG_PROMPT))
    assert agent.turn(text([]), size=0)


@pytest.mark.parametrize("place", TAKEN)
def test_steps_of_one_conversation_are_in_one_segment(place: str) -> None:
    agent = Agent(place)
    steps = [agent.turn(text([*LONG_PROMPT, *[7, 8] * count]))[0] for count in range(3)]
    spans = [shared(step, "prompt_token_ids") for step in steps]
    assert len({span.segment for span in spans if isinstance(span, Span)}) == 1
    assert [len(step.prompt_token_ids) for step in steps] == [300, 302, 304]  # type: ignore[arg-type]


@pytest.mark.parametrize("place", ["chat", "chat, streamed", "chat, with unknown fields", "SGLang's generate"])
def test_a_prompt_that_differs_at_any_byte_is_read_from_there(place: str) -> None:
    agent, whole = Agent(place), text(LONG_PROMPT)
    agent.turn(whole)
    others = ("1", "0", ",", "", "9,", " ", "-", '"', "]", ".")
    for at in cuts(whole.encode()):
        # Of each kind at every tenth place, wherever in an id that is.
        for shift in (0, 3, 6):
            agent.turn(whole[:at] + others[(at + shift) % 10] + whole[at + 1 :])
        agent.turn(whole[:at] + "5" + whole[at:])


@pytest.mark.parametrize("place", REQUESTS)
def test_only_what_is_new_is_read_of_ids_that_were_sent(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts, agent = read_anew(monkeypatch), Agent(place)
    (step, *_) = agent.turn(text(LONG_PROMPT))
    assert step.prompt_token_ids is not None
    counts.clear()
    agent.turn(text([*LONG_PROMPT, 7, 8, 11, 12, 13]))
    assert counts[0] == 3
    # Sent, but not served, or not said to be: they stay as parameters, or as the prompt.
    for size in (305, 304):
        agent.turn(text([*LONG_PROMPT, 7, 8, 11, 12, 14]), size=size)
        (step, *_) = agent.turn(text([*LONG_PROMPT, 7, 8, 11, 12, 14]), size=size, status=500)
        assert step.prompt_token_ids is None
        kept = {**(step.sampling or {}), "prompt": (step.messages or [None])[0]}
        if "kv_transfer_params" not in agent.asked:
            assert [*LONG_PROMPT, 7, 8, 11, 12, 14] in kept.values()


@pytest.mark.parametrize("place", [*TAKEN, *REQUESTS])
@pytest.mark.parametrize(
    "end", ["12", "123", "1", "12,", "12,3", "012", "12.0", "1e1", "-12", "2147483647", "2147483648", "12, 3", "null"]
)
def test_the_end_of_a_prompt_is_read_as_it_is_spelled(place: str, end: str) -> None:
    agent = Agent(place)
    for last in ("12", "123", "12,3", end, end + ",5", end):
        agent.turn(f"{text(LONG_PROMPT)},{last}")


def test_ids_that_no_engine_sends_are_found_where_they_are_new() -> None:
    agent = Agent("chat")
    agent.turn(text(LONG_PROMPT))
    (step,) = agent.turn(text([*LONG_PROMPT, 2**31]))
    assert step.prompt_token_ids is None
    assert step.token_issue is not None
    assert step.token_issue.message == "prompt_token_ids holds 2147483648; ids go from 0 to 2147483647."


def test_short_lists_and_answers_to_others_are_left_as_they_are() -> None:
    store, body = TokenStore(), sent(chat(prompt_token_ids=IDS)(300), f"[{text(LONG_PROMPT)}]", streamed=False)
    assert take(body, "openai.chat", {"n": 1}, store) == (body, None)
    short = sent(chat(prompt_token_ids=IDS)(9), "[1,2]" + " " * TokenStore.long_text, streamed=False)
    assert take(short, "openai.chat", ASKED, store) == (short, None)
    assert len(take(body, "openai.chat", ASKED, store)[0]) < 400


@st.composite
def prompts(draw: st.DrawFn) -> list[str]:
    """The prompts of some agents, by turns: each continues an earlier one, whole, in part, or with an id changed."""
    ids = st.integers(0, 12) | st.sampled_from([151_644, 2**31 - 1])
    known, found = [LONG_PROMPT, LONG_PROMPT[::-1]], []
    for _ in range(draw(st.integers(2, 8))):
        prompt = [*draw(st.sampled_from(known))]
        kind = draw(st.sampled_from(["whole", "whole", "cut", "changed", "inserted"]))
        at = draw(st.integers(0, len(prompt) - 1) | st.integers(max(0, len(prompt) - 6), len(prompt) - 1))
        if kind == "cut":
            del prompt[at:]
        elif kind == "changed":
            prompt[at] = draw(ids)
        elif kind == "inserted":
            prompt.insert(at, draw(ids))
        prompt += draw(st.lists(ids, max_size=4))
        comma = draw(st.sampled_from([",", ",", ",", ", "]))
        found.append(comma.join(map(str, prompt)))
        known.append([*prompt, 7, 8])
    return found


@settings(max_examples=examples(600), deadline=None)
@given(st.sampled_from([*PLACES, *REQUESTS]), prompts())
def test_all_conversations_give_the_steps_that_each_answer_gives_alone(place: str, texts: list[str]) -> None:
    agent = Agent(place)
    steps = [step for ids in texts for step in agent.turn(ids)]
    # As the store has them in the end, too.
    agent.stores.finish()
    assert all(segment.text is None for segment in agent.stores.tokens.segments)
    alone = [step for ids in texts for step in Agent(place).turn(ids)]
    assert steps == alone


def test_all_recordings_give_the_steps_that_each_gives_alone() -> None:
    """As calls of one trajectory, twice each, and streams beside what was sent whole: even the shortest is compared."""
    stores = comparing()
    for protocol, exchange in [*corpus(), *reversed(corpus())]:
        check_continued(protocol, exchange, exchange.request, exchange.response, stores)
    assert len(stores.tokens.segments) > 100


@settings(max_examples=examples(600), deadline=None)
@given(prompts())
def test_the_tree_of_ids_that_were_read_so_is_that_of_whole_arrays(texts: list[str]) -> None:
    """The same segments, whose ends and beginnings tell which step a prompt continues."""
    trees = TokenStore(), TokenStore()
    completion = np.array([7, 8], np.int32)
    for ids in texts:
        found = trees[0].read(ids.encode(), 0, len(ids))
        whole = np.array(json.loads(f"[{ids}]"), np.int32)
        assert (found is None) is (" " in ids or len(ids) < TokenStore.long_text)
        assert found is None or found.get().tolist() == whole.tolist()
        spans = [tree.add(whole if found is None or tree is trees[1] else found, completion) for tree in trees]
        for one, other in zip(*spans, strict=True):
            assert one is not None and other is not None  # noqa: PT018
            assert (one.start, one.stop) == (other.start, other.stop)
            assert trees[0].segments.index(one.segment) == trees[1].segments.index(other.segment)
    shapes = [[(one.start, one.own_ids.tolist()) for one in tree.segments] for tree in trees]
    assert shapes[0] == shapes[1]
