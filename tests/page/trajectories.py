"""Made-up trajectories for the page, with everything in them that it can show, and the server's answers for them."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import msgspec

from rollout_trace.view.assets import linked_page
from rollout_trace.view.model import (
    Alternative,
    Message,
    Outline,
    Part,
    RowPart,
    RowView,
    StepLine,
    StepView,
    Summary,
    Tokens,
)
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
            route.fulfill(status=403, json={"error": self.refuses["annotate"]})
            return
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
            super()._answer(route, name, arguments)
            return
        self.asked.append((name, arguments))
        if name in self.refuses:
            route.fulfill(status=500, json={"error": self.refuses[name]})
            return
        at = _index(arguments["key"])
        if at >= len(self.ones):
            route.fulfill(status=404, json={"error": f"there is no trajectory {arguments['key']}"})
            return
        one = self.ones[at]
        if name == "trajectory":
            route.fulfill(status=200, json={**plain(one.outline), "family": []})
        elif name == "steps":
            first, end = int(arguments["first"]), int(arguments["end"])
            assert end - first <= 50
            route.fulfill(status=200, content_type="application/json", body=msgspec.json.encode(one.steps[first:end]))
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
    """Tokens with these texts and made-up logprobs, entropies and alternatives: for the same arguments the same."""
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


def long(n: int, n_tokens: int = 30) -> One:
    """A trajectory of many steps, each with its number in its answer."""
    lines, steps, parts = [], [], []
    at = 0
    for i in range(n):
        answer = f"This is the answer of step {i}" + ", which goes on" * (i % 7) + "."
        texts = words(answer)
        texts += [" and"] * max(0, n_tokens - len(texts))
        line = StepLine(
            index=i,
            id=f"s{i}",
            call_id=f"c{i}",
            continues=i - 1 if i else None,
            started=STARTED + i,
            latency=0.8,
            n_prompt=at + 10,
            n_completion=len(texts),
            row=0,
            begin=at + 10,
            excerpt=answer[:120],
        )
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
