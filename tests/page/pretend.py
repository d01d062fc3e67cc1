"""The page with summaries that a test makes up: its files and the answers of its server, given to the browser directly.

What the page does with many, odd or changing trajectories is shown with it; with recorded files and the real server,
``serve`` of conftest.py.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec

from rollout_trace.view.assets import asset, linked_page
from rollout_trace.view.model import Summary
from rollout_trace.view.page_data import about

ADDRESS = "http://page.invalid/made-up-token/"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'"
)
TASKS = ("gsm8k", "swe/django", "chain", "browse")
ASKED = (
    "How many eggs are left after breakfast?",
    "Fix the parser so that nested lists keep their order.",
    "What is 12 * 7 + 5 ?",
    "Find the opening hours of the library on Sundays.",
)


def made_up(n: int, group_size: int = 8, seed: int = 0) -> list[Summary]:
    """Summaries like those of a training run; the same ones for the same arguments."""
    chance = random.Random(seed)
    return [_made_up(i, i // group_size, i % group_size, chance) for i in range(n)]


def _made_up(i: int, group: int, index: int, chance: random.Random) -> Summary:
    kind = group % len(TASKS)
    status = chance.choices(["completed", "error", "truncated"], [90, 6, 4])[0]
    steps = 1 + int(chance.expovariate(0.25 if kind else 0.8))
    sampled = [int(chance.lognormvariate(5, 0.7)) + 4 for _ in range(steps)]
    tokens = sum(sampled) + 300 * kind + 60 + steps * 35
    solved = chance.random() < (0.9, 0.15, 0.6, 0.45)[kind] + min(0.1, i / 20000)
    reward = None if status == "error" else float(solved) if kind % 2 == 0 else round(solved * chance.random(), 2)
    findings: dict[str, int] = {}
    if chance.random() < 0.12:
        findings["constrained_sampling"] = chance.randint(1, 3)
    if chance.random() < 0.06:
        findings["drift"] = 1
    if status == "error":
        findings["no_completion_ids"] = 1
    grade = "fatal" if status == "error" else "warning" if "drift" in findings else "info" if findings else None
    return Summary(
        id=f"{chance.getrandbits(64):016x}",
        name="coordinator" if kind == 3 else "solver",
        task=f"{TASKS[kind]}/{group}",
        group=f"{TASKS[kind]}/{group}",
        index=index,
        status=status,
        error="APITimeoutError: Request timed out." if status == "error" else None,
        reward=reward,
        started=1_795_400_000 + i * 7.3,
        seconds=round(steps * chance.lognormvariate(0.3, 0.5), 3),
        steps=steps,
        calls=steps,
        agents=["solver"],
        models=["Qwen/Qwen3-8B"],
        input_tokens=tokens * 2,
        output_tokens=sum(sampled),
        cost=tokens * 2.4e-7,
        currency="USD",
        latency=steps * 0.6,
        first_token=0.11,
        tool_runs=max(0, steps - 1),
        tool_errors=int(chance.random() < 0.05),
        rows=1 + int(chance.random() < 0.1),
        tokens=tokens,
        trained=sum(sampled),
        findings=findings,
        grade=grade,  # type: ignore[arg-type]
        drift={"retokenized": 1} if "drift" in findings else {},
        excerpt=ASKED[kind],
    )


class Pretend:
    """Answers the browser's requests below ``ADDRESS``.

    Args:
        summaries: what the list shows; may be changed, together with ``generation``.
    """

    def __init__(self, summaries: list[Summary]) -> None:
        self.summaries = summaries
        self.generation = 1
        self.search: dict[str, Any] = {"keys": [], "share": 1, "problem": None}
        """What a search in whole trajectories finds."""
        self.indexing: dict[str, int] | None = None
        self.problems: list[str] = []
        self.failing: str | None = None
        """A sentence with which every request of data is refused."""
        self.asked: list[tuple[str, dict[str, str]]] = []
        """What was asked for: the name and the arguments."""

    def __call__(self, route: Any) -> None:
        url = urlsplit(route.request.url)
        name = url.path.removeprefix(urlsplit(ADDRESS).path)
        if name.startswith("api/"):
            self._answer(route, name.removeprefix("api/"), dict(parse_qsl(url.query)))
        else:
            found = asset(name) if name else (linked_page().encode(), "text/html; charset=utf-8")
            body, kind = found or (b"", "text/plain")
            headers = {"Content-Security-Policy": POLICY, "Content-Type": kind}
            route.fulfill(status=404 if found is None else 200, headers=headers, body=body)

    def _answer(self, route: Any, name: str, arguments: dict[str, str]) -> None:
        self.asked.append((name, arguments))
        if self.failing is not None:
            route.fulfill(status=500, json={"error": self.failing})
            return
        answers: dict[str, Callable[[dict[str, str]], Any]] = {
            "info": self._info, "rows": self._rows, "search": self._search,
            "trajectory": self._trajectory, "steps": lambda _: [],
        }  # fmt: skip
        if name in answers:
            route.fulfill(status=200, json=answers[name](arguments))
        else:
            route.fulfill(status=404, json={"error": f"there is no api/{name}"})

    def _info(self, arguments: dict[str, str]) -> dict[str, Any]:
        return {
            **about("rollouts.jsonl", ["/data/rollouts.jsonl"], None), "total": len(self.summaries), "writable": True,
            "static": False, "indexing": self.indexing, "generation": self.generation, "problems": self.problems,
        }  # fmt: skip

    def _trajectory(self, arguments: dict[str, str]) -> dict[str, Any]:
        key = arguments["key"]
        summary = as_row(int(key.partition("-")[2]), self.summaries[int(key.partition("-")[2])])
        parts: dict[str, list[Any]] = {
            name: [] for name in ("steps", "tool_runs", "rows", "findings", "drift", "family")
        }
        return {"summary": {**summary, "steps": 0}, **parts}

    def _rows(self, arguments: dict[str, str]) -> dict[str, Any]:
        is_known = int(arguments["since"]) == self.generation
        rows = [] if is_known else [as_row(i, one) for i, one in enumerate(self.summaries)]
        return {"generation": self.generation, "epoch": self.generation, "after": None, "rows": rows}

    def _search(self, arguments: dict[str, str]) -> dict[str, Any]:
        return self.search


def as_row(i: int, summary: Summary) -> dict[str, Any]:
    """A summary as the page gets it."""
    row: dict[str, Any] = json.loads(msgspec.json.encode(summary))
    return {**row, "key": f"0-{i}"}
