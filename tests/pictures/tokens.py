"""Drawings of tokens: an answer with its ids, logprobs and mask; an answer whose text became other ids."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

from openai import OpenAI
from tokenizers import Tokenizer

import rollout_trace as rt
from rollout_trace.testing import ScriptedServer, load_exchanges
from rollout_trace.wire import decode
from tests.pictures.figure import WIDTH, Figure

DATA = Path(__file__).resolve().parents[1] / "data"
MODEL = DATA / "tiny-model"
SHOWN = 20
"""Characters of the answer that drifted."""


def _texts(ids: list[int]) -> list[str]:
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    return [tokenizer.decode([one], skip_special_tokens=False).replace("\n", "⏎").replace(" ", "␣") for one in ids]


def answer() -> str:
    """The last tokens of a prompt, and an answer."""
    figure = Figure("Each token has an id; each sampled token a logprob; the mask is 1 where the model sampled it")
    with (
        ScriptedServer("It is 42.", tokenizer=str(MODEL)) as server,
        OpenAI(base_url=server.base_url, api_key="-") as client,
    ):
        rt.wrap_openai(client, engine="vllm")
        with rt.trajectory() as trajectory:
            client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "How much is 17 + 25?"}])
    (step,) = trajectory.steps
    assert step.prompt_token_ids is not None
    assert step.completion_token_ids is not None
    assert step.logprobs is not None
    last = step.prompt_token_ids[-6:].tolist()
    figure.text(16, figure.y + 12, "prompt_token_ids", "bold mono")
    figure.text(
        150, figure.y + 12, f"{len(step.prompt_token_ids)} ids that the model read; the last {len(last)}:", "small dim"
    )
    figure.y += 24
    _cells(figure, last, None, "read")
    figure.text(16, figure.y + 12, "completion_token_ids", "bold mono")
    figure.text(180, figure.y + 12, f"{len(step.completion_token_ids)} ids that it sampled:", "small dim")
    figure.y += 24
    _cells(figure, step.completion_token_ids.tolist(), step.logprobs.tolist(), "la")
    figure.y -= 12
    return figure.svg()


def _cells(figure: Figure, ids: list[int], logprobs: list[float] | None, kind: str) -> None:
    """A cell for each token in lines: its text, id, logprob and mask."""
    x, high = 62.0, 82 if logprobs else 64
    for at, (one, text) in enumerate(zip(ids, _texts(ids), strict=True)):
        width = max(44.0, 12 + 7.4 * len(text))
        if x == 62 or x + width > WIDTH - 12:
            figure.y += 0 if x == 62 else high + 8
            x = 62.0
            for line, name in enumerate(["text", "id", *(["logprob"] if logprobs else []), "mask"]):
                figure.text(16, figure.y + 17 + 18 * line, name, "small dim")
        figure.rect(x, figure.y, width, high, kind)
        lines = [(text, "mono"), (str(one), "small mono")]
        lines += [] if logprobs is None else [(f"{logprobs[at]:.2f}".replace("-", "−"), "small mono")]
        lines += [("0" if logprobs is None else "1", "small mono bold")]
        for line, (word, look) in enumerate(lines):
            figure.text(x + width / 2, figure.y + 17 + 18 * line, word, look, anchor="middle")
        x += width + 4
    figure.y += high + 14


def drift() -> str:
    """An answer of vLLM's, and the ids that its chat template made of the answer's text."""
    sampled, read = _drifted()
    figure = Figure("One text, two tokenisations: what the model sampled, and what the next prompt has in its place")
    figure.text(16, figure.y + 12, "The model sampled these ids:", "bold")
    figure.y += 22
    _line(figure, sampled, read)
    figure.text(16, figure.y + 12, "The next prompt has the same text in these:", "bold")
    figure.y += 22
    _line(figure, read, sampled)
    figure.text(16, figure.y + 8, "Coloured: tokens that the other line does not have at this place.", "small dim")
    figure.text(16, figure.y + 24, "Both were recorded from vLLM.", "small dim")
    figure.y += 26
    return figure.svg()


def _line(figure: Figure, ids: list[int], others: list[int]) -> None:
    texts = _texts(ids)
    ends = list(accumulate(map(len, texts)))
    other_ends = list(accumulate(map(len, _texts(others))))
    same = set(zip(ids, ends, strict=True)) & set(zip(others, other_ends, strict=True))
    unit = (WIDTH - 32) / SHOWN
    for one, text, end in zip(ids, texts, ends, strict=True):
        if end > SHOWN:
            break
        x = 16 + unit * (end - len(text))
        figure.rect(x, figure.y, unit * len(text), 44, "read" if (one, end) in same else "lb")
        figure.text(x + unit * len(text) / 2, figure.y + 18, text, "mono", anchor="middle")
        figure.text(x + unit * len(text) / 2, figure.y + 36, str(one), "small mono", anchor="middle")
    figure.y += 60


def _drifted() -> tuple[list[int], list[int]]:
    """The completion's ids, and those in its place in the next prompt."""
    trajectory = rt.Trajectory()
    for exchange in load_exchanges(DATA / "wire_vllm.jsonl.xz"):
        if exchange.path == "/v1/chat/completions" and exchange.status == 200:
            trajectory.steps += decode(
                "openai.chat", exchange.request, exchange.response, content_type=exchange.content_type
            )
    steps = {step.id: step for step in trajectory.steps}
    for one in rt.drift(trajectory):
        before, after = steps[one.previous_step_id], steps[one.step_id]
        answer = before.completion and before.completion.content
        if one.kind == "retokenized" and isinstance(answer, str) and answer.startswith("Hello there"):
            assert before.prompt_token_ids is not None
            assert before.completion_token_ids is not None
            assert after.prompt_token_ids is not None
            return before.completion_token_ids.tolist(), after.prompt_token_ids[len(before.prompt_token_ids) :].tolist()
    raise LookupError("no recorded answer drifted")
