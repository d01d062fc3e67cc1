"""Made-up trajectories for the page, with everything in them that it can show, and the server's answers for them."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import msgspec

from rollout_trace.view.model import (
    Alternative,
    AttemptView,
    DriftView,
    FindingView,
    Message,
    Outline,
    Part,
    RowPart,
    RowView,
    StepLine,
    StepView,
    Summary,
    Tokens,
    ToolRunView,
)
from rollout_trace.view.assets import linked_page
from tests.page.pretend import ADDRESS, POLICY, Pretend

STARTED = 1_795_400_000.0
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAoAAAAKCAYAAACNMs+9AAAAFUlEQVR42mNk+M9Qz0AEYBxVSF+FABJADveWkH6oAAAA"
    "AElFTkSuQmCC"
)


class One:
    """A trajectory as the page gets it."""

    def __init__(self, outline: Outline, steps: list[StepView], raw: dict[str, str | None] | None = None) -> None:
        self.outline, self.steps = outline, steps
        self.raw = raw or {"request": None, "response": None, "line": None}


class Served(Pretend):
    """Answers for whole trajectories too; ``keys`` are ``0-0``, ``0-1``, ... in their order."""

    def __init__(self, ones: list[One], writable: bool = True) -> None:
        super().__init__([one.outline.summary for one in ones])
        self.ones = ones
        self.writable = writable
        self.refuses: dict[str, str] = {}
        """Name of a request to the sentence with which it is refused."""
        self.saved: list[dict[str, Any]] = []

    def _info(self, arguments: dict[str, str]) -> dict[str, Any]:
        return {**super()._info(arguments), "writable": self.writable}

    def __call__(self, route: Any) -> None:
        if route.request.method == "POST":
            self._annotate(route, route.request.post_data_json)
        elif route.request.url.split("#")[0] == ADDRESS:
            headers = {"Content-Security-Policy": POLICY, "Content-Type": "text/html; charset=utf-8"}
            route.fulfill(status=200, headers=headers, body=linked_page())
        else:
            super().__call__(route)

    def _annotate(self, route: Any, body: dict[str, Any]) -> None:
        if "annotate" in self.refuses:
            return route.fulfill(status=403, json={"error": self.refuses["annotate"]})
        self.saved.append(body)
        one = self.ones[_index(body["key"])]
        values = body["values"]
        note = values.get("metadata", {}).get("note", one.outline.summary.note)
        changed = {"reward": values.get("reward", one.outline.summary.reward), "note": note}
        changed["rewards"] = {**(one.outline.summary.rewards or {}), **values.get("rewards", {})}
        summary = msgspec.structs.replace(one.outline.summary, **changed)
        one.outline = msgspec.structs.replace(one.outline, summary=summary)
        self.summaries[_index(body["key"])] = summary
        self.generation += 1
        route.fulfill(status=200, json={**plain(summary), "key": body["key"]})

    def _answer(self, route: Any, name: str, arguments: dict[str, str]) -> None:
        if name not in ("trajectory", "steps", "raw") or self.failing is not None:
            return super()._answer(route, name, arguments)
        self.asked.append((name, arguments))
        if name in self.refuses:
            return route.fulfill(status=500, json={"error": self.refuses[name]})
        at = _index(arguments["key"])
        if at >= len(self.ones):
            return route.fulfill(status=404, json={"error": f"there is no trajectory {arguments['key']}"})
        one = self.ones[at]
        if name == "trajectory":
            by_id = {other.outline.summary.id: f"0-{i}" for i, other in enumerate(self.ones)}
            family = [{**plain(each), "key": by_id.get(each.id)} for each in one.outline.family]
            route.fulfill(status=200, json={**plain(one.outline), "family": family, "key": arguments["key"], "file": 0})
        elif name == "steps":
            first, end = int(arguments["first"]), int(arguments["end"])
            assert end - first <= 50
            route.fulfill(status=200, json=[plain(step) for step in one.steps[first:end]])
        else:
            route.fulfill(status=200, json=one.raw)


def _index(key: str) -> int:
    return int(key.split("-")[1])


def plain(value: Any) -> Any:
    """A value as the page gets it from JSON."""
    return json.loads(msgspec.json.encode(value))


def opened(pages: Any, ones: list[One], place: str = "#/t/0-0", **options: Any) -> tuple[Any, Served]:
    """A page at a place, and its server."""
    writable = options.pop("writable", True)
    page = pages.new(**options)
    served = Served(ones, writable=writable)
    page.route(f"{ADDRESS}**", served)
    page.goto(ADDRESS + place)
    return page, served


def tokens(texts: list[str], seed: int = 0, sure: float = 0.7) -> Tokens:
    """Tokens with these texts, and made-up logprobs, entropies and alternatives; the same ones for the same arguments."""
    chance = random.Random(seed)
    logprobs = [
        round(-chance.expovariate(1 / 0.12) if chance.random() < sure else -chance.uniform(0.3, 4), 3) for _ in texts
    ]
    ids = [100 + sum(map(ord, text)) % 1900 for text in texts]
    alternatives = [
        [
            Alternative(text, ids[i], logprobs[i]),
            Alternative(" other", 7, round(math.log(max(1e-4, 0.7 * (1 - math.exp(logprobs[i])))), 3)),
            Alternative("\n", 8, -4.5),
        ]
        for i, text in enumerate(texts)
    ]
    entropy: list[float | None] = [round(-logprob * 0.8, 3) for logprob in logprobs]
    return Tokens(
        n=len(texts), ids=ids, texts=texts, logprobs=list(logprobs), entropy=entropy, alternatives=alternatives
    )


def words(text: str) -> list[str]:
    """A text cut before its blanks, as tokenizers like it."""
    pieces: list[str] = []
    for letter in text:
        if letter == " " or letter in '{}":\n' or not pieces or pieces[-1][-1] in '{}":\n':
            pieces.append(letter)
        else:
            pieces[-1] += letter
    return pieces


def solver(index: int = 2, answer: str = "The answer is 89. I checked it twice, because 84 and 5 make 89.") -> One:
    """An agent with a calculator: reasoning, tools, drift, a retry, a finding, a sub-agent and a left-out step."""
    system = Message(
        role="system",
        parts=[
            Part(kind="text", text="You answer arithmetic questions. One calculator call a step; then give the number.")
        ],
    )
    asked = Message(
        role="user",
        parts=[Part(kind="text", text="What is 12 * 7 + 5 ?"), Part(kind="image", text=PIXEL, name="image/png")],
    )
    thought = "I should multiply first,\nthen add five."
    first = ["<think>", "\n", *words(thought), "\n", "</think>", "\n\n", "<tool_call>", "\n", *words('{"name": "calculator", "arguments": '),
             *words('{"expression": "12 * 7"}'), "}", "\n", "</tool_call>", "<|im_end|>"]  # fmt: skip
    second = [
        "<tool_call>",
        "\n",
        *words('{"name": "calculator", "arguments": '),
        *words('{"expression": "84 + 5"}'),
        "}",
        "\n",
        "</tool_call>",
        "<|im_end|>",
    ]
    third = [*words(answer), "<|im_end|>"]
    sampled = [tokens(first, 1), tokens(second, 2), tokens(third, 3)]
    finding = FindingView(
        code="constrained_sampling",
        grade="warning",
        message="tool_choice forced the call; 6 logprobs are of the grammar.",
        step=1,
    )
    whole = FindingView(code="no_reward_parts", grade="info", message="The reward has no parts.")
    drift = DriftView(step=2, previous=1, position=117, kind="retokenized", expected=[27, 83, 1616], found=[2042], expected_text="<tool_call>",
                      found_text="<tool_call>", meaning="the same text in other token ids")  # fmt: skip
    runs = [
        ToolRunView(
            name="calculator",
            tool_call_id="call_1",
            step=0,
            arguments='{"expression": "12 * 7"}',
            result="84",
            started=STARTED + 0.42,
            duration=0.03,
        ),
        ToolRunView(
            name="calculator",
            tool_call_id="call_2",
            step=1,
            arguments='{"expression": "84 + 5"}',
            result="89",
            started=STARTED + 0.78,
            duration=0.0007,
        ),
        ToolRunView(
            name="lookup", step=1, arguments="{}", error="KeyError: 'sum'", started=STARTED + 0.77, duration=0.05
        ),
    ]

    def line(at: int, **more: Any) -> StepLine:
        base: dict[str, Any] = dict(index=at, id=f"s{at}", call_id=f"c{at}", model="Qwen/Qwen3-8B", started=STARTED + (0, 0.46, 0.9, 1.3)[at],
                    latency=(0.41, 0.30, 0.33, 0.05)[at], first_token=0.09, continues=at - 1 if at else None)  # fmt: skip
        return StepLine(**{**base, **more})

    lines = [
        line(0, n_prompt=30, n_completion=len(first), row=0, begin=30, finish="tool_calls", tools=["calculator"], excerpt=thought, mean_logprob=-0.51),
        line(1, n_prompt=90, n_completion=len(second), row=0, begin=90, finish="tool_calls", tools=["calculator"], grade="warning"),
        line(2, n_prompt=140, n_completion=len(third), row=1, begin=140, finish="stop", drift="retokenized", excerpt=answer),
        line(3, status="error", left_out="status", continues=0, thread=1),
    ]  # fmt: skip
    steps = [
        StepView(line=lines[0], new=[system, asked], tokens=sampled[0], tool_runs=runs[:1], policy_version="step-120", engine="vllm",
                 protocol="openai.chat", logprobs_mode="raw", token_source="engine", sampling={"temperature": 1.0}, usage={"input": 30, "output": len(first)},
                 answer=Message(role="assistant", parts=[Part(kind="reasoning", text=thought), Part(kind="tool_call", text='{"expression": "12 * 7"}', name="calculator", id="call_1")])),
        StepView(line=lines[1], repeated=3, new=[Message(role="tool", tool_call_id="call_1", parts=[Part(kind="text", text="84")])], tokens=sampled[1],
                 tool_runs=runs[1:], findings=[finding], children=["child-of-" + str(index), "unknown-child"],
                 answer=Message(role="assistant", parts=[Part(kind="tool_call", text='{"expression": "84 + 5"}', name="calculator", id="call_2")])),
        StepView(line=lines[2], repeated=5, new=[Message(role="tool", tool_call_id="call_2", parts=[Part(kind="text", text="89")])], tokens=sampled[2], drift=drift,
                 attempts=[AttemptView(started=STARTED + 0.84, duration=0.04, status=429, error="Too Many Requests"), AttemptView(started=STARTED + 0.9, duration=0.33, status=200)],
                 answer=Message(role="assistant", parts=[Part(kind="text", text=answer)])),
        StepView(line=lines[3], repeated=2, new=[Message(role="user", parts=[Part(kind="text", text="And without the tool?")])], error="APITimeoutError: Request timed out.",
                 attempts=[AttemptView(started=STARTED + 1.3, duration=0.05, error="ReadTimeout")]),
    ]  # fmt: skip
    reward = 1.0 if "89" in answer else 0.0
    summary = Summary(id=f"solver-{index}", name="solver", task="chain/1", group="chain/1", index=index, reward=reward, rewards={"correct": reward}, started=STARTED,
                      seconds=1.35, steps=4, calls=4, agents=["solver"], models=["Qwen/Qwen3-8B"], input_tokens=260, output_tokens=len(first) + len(second) + len(third),
                      cost=0.0004, currency="USD", rows=2, trained=len(first) + len(second) + len(third), left_out={"status": 1}, findings={"constrained_sampling": 1},
                      tool_runs=3, tool_errors=1, grade="warning", drift={"retokenized": 1}, episode=f"episode-{index}", excerpt="What is 12 * 7 + 5 ?")  # fmt: skip
    rows = [
        RowView(length=90 + len(second), trained=len(first) + len(second), reward=reward,
                parts=[RowPart(30, 0, None), RowPart(len(first), 1, 0), RowPart(60 - len(first), 0, None), RowPart(len(second), 1, 1)]),
        RowView(length=140 + len(third), trained=len(third), reward=reward, parts=[RowPart(140, 0, None), RowPart(len(third), 1, 2)]),
    ]  # fmt: skip
    child = Summary(
        id=f"child-of-{index}",
        name="checker",
        parent=summary.id,
        episode=f"episode-{index}",
        started=STARTED + 0.8,
        seconds=0.1,
        steps=1,
        reward=0.5,
    )
    outline = Outline(summary=summary, steps=lines, tool_runs=[msgspec.structs.replace(run, arguments=None, result=None) for run in runs], rows=rows,
                      findings=[finding, whole], drift=[drift], threads=2, family=[summary, child], task={"question": "12 * 7 + 5"}, environment={"python": "3.12"},
                      metadata={"seed": 3}, token_texts="engine")  # fmt: skip
    raw = {"request": '{"model": "Qwen/Qwen3-8B", "seed": 12345678901234567890}', "response": None, "line": None}
    return One(outline, steps, raw)


def child(index: int = 2) -> One:
    """The sub-agent of ``solver(index)``."""
    parent = solver(index).outline
    summary = parent.family[1]
    line = StepLine(index=0, id="x0", call_id="y0", n_completion=2, row=0, begin=5)
    step = StepView(
        line=line, tokens=tokens(["Yes", "."]), answer=Message(role="assistant", parts=[Part(kind="text", text="Yes.")])
    )
    rows = [RowView(length=7, trained=2, parts=[RowPart(5, 0, None), RowPart(2, 1, 0)])]
    return One(
        Outline(summary=summary, steps=[line], tool_runs=[], rows=rows, findings=[], drift=[], family=parent.family),
        [step],
    )


def long(n: int, n_tokens: int = 30) -> One:
    """A trajectory of many steps, each with its number in its answer."""
    lines, steps, parts = [], [], []
    at = 0
    for i in range(n):
        answer = f"This is the answer of step {i}" + ", which goes on" * (i % 7) + "."
        texts = words(answer)
        texts += [" and"] * max(0, n_tokens - len(texts))
        line = StepLine(index=i, id=f"s{i}", call_id=f"c{i}", continues=i - 1 if i else None, started=STARTED + i, latency=0.8, n_prompt=at + 10,
                        n_completion=len(texts), row=0, begin=at + 10, excerpt=answer[:120])  # fmt: skip
        new = [Message(role="user", parts=[Part(kind="text", text=f"Question {i}?" + " More of it." * (i % 40))])]
        steps.append(
            StepView(
                line=line,
                new=new,
                tokens=tokens(texts, i),
                answer=Message(role="assistant", parts=[Part(kind="text", text="".join(texts))]),
            )
        )
        lines.append(line)
        parts += [RowPart(10, 0, None), RowPart(len(texts), 1, i)]
        at += 10 + len(texts)
    summary = Summary(
        id="long", steps=n, calls=n, rows=1, trained=sum(line.n_completion or 0 for line in lines), started=STARTED
    )
    rows = [RowView(length=at, trained=summary.trained, parts=parts)]
    return One(Outline(summary=summary, steps=lines, tool_runs=[], rows=rows, findings=[], drift=[]), steps)
