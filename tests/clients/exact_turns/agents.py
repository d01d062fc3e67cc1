"""A server whose answers have other ids than a tokenizer gives their text, and agents that talk to it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from openai import AsyncOpenAI, OpenAI

import rollout_trace as rt
from rollout_trace.clients.loopback.messages import RequestRecord, Response, json_response
from rollout_trace.testing import Reply, ScriptedServer
from rollout_trace.testing.tokenizer import ByteTokenizer
from tests.clients.either import Kind, done, each, entered

TOKENIZER = ByteTokenizer(("hello", "world", "tool", '{"a": ', "result"))
"""Its words are one id each, and several where the model spells them."""
ENGINE = rt.Engine("vllm", exact_turns=True)
BY_TEXT = rt.Engine("vllm")
SGLANG = rt.Engine("sglang", exact_turns=True)
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "tool", "parameters": {"type": "object"}}}]


def spelled(text: str) -> list[int]:
    """The ids of a text, letter by letter."""
    return list(text.encode())


def says(text: str, end: bool = True) -> Reply:
    """An answer that is spelled letter by letter; without ``end`` it is cut by a limit."""
    ids = [*spelled(text), *([TOKENIZER.eos_token_id] if end else [])]
    return Reply(token_ids=ids, finish_reason="stop" if end else "length")


def numbered(request: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> Reply:
    """An answer that says how many came before it."""
    return says(f"hello world {sum(one['role'] == 'assistant' for one in messages)}")


class IgnoringServer(ScriptedServer):
    """One that reads no ids beside the messages, as servers that do not know the field."""

    def answer(self, record: RequestRecord) -> Response:
        body = json.loads(record.body) if record.method == "POST" else {}
        changed = {name: value for name, value in body.items() if name != "kv_transfer_params"}
        return super().answer(replace(record, body=json.dumps(changed).encode()) if changed != body else record)


class RefusingServer(ScriptedServer):
    """One that refuses fields that it does not know."""

    def answer(self, record: RequestRecord) -> Response:
        if b"kv_transfer_params" not in record.body:
            return super().answer(record)
        return json_response(400, {"error": {"message": "Extra inputs are not permitted", "code": 400}})


class SGLangServer(ScriptedServer):
    """One with the fields of SGLang 0.5.23, as its `srt/entrypoints/openai/serving_chat.py` reads and writes them."""

    def answer(self, record: RequestRecord) -> Response:
        if not record.path.endswith("/chat/completions"):
            return super().answer(record)
        body = json.loads(record.body)
        ids, in_choices, in_sglext = (
            body.pop(name, None) for name in ("input_ids", "return_token_ids", "return_input_ids_in_sglext")
        )
        if body.get("stream") and in_choices:  # Line 1315.
            return json_response(400, {"message": "return_token_ids is not supported with streaming", "code": 400})
        if ids is not None:  # Line 1947: the template is not rendered.
            body["kv_transfer_params"] = {"prompt_token_ids": ids}
        elif body["messages"][-1]["role"] == "assistant" and not body.get("continue_final_message"):  # Line 548.
            body["messages"][-1]["role"] = "user"
        made = super().answer(replace(record, body=json.dumps({**body, "return_token_ids": True}).encode()))
        if made.status != 200:
            return made
        if not body.get("stream"):
            answer = json.loads(b"".join(part for part in made.parts if isinstance(part, bytes)))
            prompt = answer.pop("prompt_token_ids")
            for choice in answer["choices"]:
                sampled = choice.pop("token_ids")
                if in_choices:  # Line 2976.
                    choice.update(prompt_token_ids=prompt, response_token_ids=sampled)
            return json_response(200, answer)
        events = [json.loads(part[6:]) for part in made.parts[:-1] if isinstance(part, bytes)]
        prompt, sampled = events[0].pop("prompt_token_ids"), [[] for _ in range(body.get("n") or 1)]
        for choice in (choice for event in events for choice in event["choices"]):
            sampled[choice["index"]] += choice.pop("token_ids", None) or []
        if in_sglext:  # Line 2730: of all choices, in a chunk of its own at the end.
            events.append({**events[0], "choices": [], "sglext": {"input_ids": prompt, "output_ids": sampled}})
        written = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]
        return replace(made, parts=[*written, b"data: [DONE]\n\n"])


_THOUGHT = re.compile(r"<think>.*?(?:</think>\n\n|(?=<\|im_end\|>))", re.DOTALL)
"""An agent need not send thinking back: it stays in the ids."""


async def talked(kind: Kind, server: ScriptedServer, engine: rt.Engine, turns: int, *, stream: bool) -> rt.Trajectory:
    """The trajectory of a conversation of so many turns."""
    plain = OpenAI if kind == "sync" else AsyncOpenAI
    async with entered(plain(base_url=server.base_url, api_key="-")) as client:
        rt.wrap_openai(client, engine=engine)
        messages: list[Any] = [{"role": "user", "content": "hi"}]
        with rt.trajectory() as trajectory:
            for turn in range(turns):
                answer = await done(client.chat.completions.create(model="m", messages=messages, stream=stream))
                if stream:
                    chunks = [chunk async for chunk in each(answer)]
                    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
                else:
                    text = answer.choices[0].message.content
                answered = {"role": "assistant", "content": text}
                messages = [*messages, answered, {"role": "user", "content": f"go on {turn}"}]
    return trajectory


def texts(steps: Sequence[rt.Step]) -> list[str | None]:
    """Why each step went out as text; None for those that did not."""
    return [None if step.exact_turn is None else step.exact_turn.reason for step in steps]


def exact(steps: Sequence[rt.Step]) -> list[bool]:
    """Which steps were sent as ids, and served so."""
    return [step.exact_turn is not None and step.exact_turn.is_exact for step in steps]


def ids_sent(record: RequestRecord) -> list[int] | None:
    """The ids in a request."""
    found = json.loads(record.body).get("kv_transfer_params")
    return None if found is None else list(found["prompt_token_ids"])


def ids_of(array: Any) -> list[int]:
    """Ids of a step, which must be there."""
    assert array is not None
    return [int(one) for one in array]


_PADDING = re.compile(r"(?<=<\|im_start\|>assistant\n)\s+|\s+(?=<\|im_end\|>)")


def check_steps(steps: Sequence[rt.Step], *, strips: bool = False) -> None:
    """Checks that each exact step begins with the ids of the one that it names, and reads as its messages do.

    ``strips``: save for white space around an answer.
    """
    by_id = {step.id: step for step in steps}
    for step in steps:
        turn = step.exact_turn
        if turn is None or not turn.is_exact:
            continue
        assert turn.step_id is not None
        before = by_id[turn.step_id]
        assert step.prompt_token_ids is not None
        assert before.prompt_token_ids is not None
        assert before.completion_token_ids is not None
        begin = [*before.prompt_token_ids.tolist(), *before.completion_token_ids.tolist()]
        served = step.prompt_token_ids.tolist()
        assert served[: len(begin)] == begin
        assert len(served) == turn.n_ids
        rendered = TOKENIZER.apply_chat_template(step.messages or (), step.tools, tokenize=False)
        texts = [_THOUGHT.sub("", text) for text in (TOKENIZER.decode(served), rendered)]
        first, second = [_PADDING.sub("", text) for text in texts] if strips else texts
        assert first == second
