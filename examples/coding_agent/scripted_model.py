"""The model that the example runs on where none is named: it makes good and bad attempts at the tasks of this folder.

Also as a server of its own:

    rollout-trace serve scripted_model.py --port 8000
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rollout_trace.testing import Reply, by_conversation

TASKS = [json.loads(line) for line in Path(__file__).with_name("tasks.jsonl").read_text().splitlines()]


class Edit(NamedTuple):
    path: str
    old: str
    new: str


class Plan(NamedTuple):
    """What is to be done in a repository."""

    edits: tuple[Edit, ...]
    """All of them repair it; with the first alone it passes the tests that the agent sees."""
    test: Edit
    """Makes the tests pass that the agent sees, by changing what they expect."""


PLANS = {
    "slugs": Plan(
        (
            Edit("slugs.py", '"[^a-z0-9]"', '"[^a-z0-9]+"'),
            Edit("slugs.py", 'slug.strip("-")[:limit]', 'slug.strip("-")[:limit].rstrip("-")'),
        ),
        Edit("tests/test_slugs.py", '"fast-small-a-tokenizer"', '"fast--small--a-tokenizer"'),
    ),
    "intervals": Plan(
        (
            Edit("intervals.py", "start < merged", "start <= merged"),
            Edit("intervals.py", "(merged[-1][0], end)", "(merged[-1][0], max(merged[-1][1], end))"),
        ),
        Edit(
            "tests/test_intervals.py", "(30, 60)]), [(0, 60)])\n\n    def test_touching", "(30, 60)])\n\n    def skip"
        ),
    ),
    "cache": Plan(
        (
            Edit(
                "cache.py",
                "return self._entries.get(key)",
                "if key in self._entries:\n            self._entries[key] = self._entries.pop(key)\n"
                "        return self._entries.get(key)",
            ),
            Edit(
                "cache.py",
                "if len(self._entries) >= self._size:",
                "if key in self._entries:\n            del self._entries[key]\n"
                "        elif len(self._entries) >= self._size:",
            ),
        ),
        Edit("tests/test_cache.py", "(1, None))", "(None, 2))"),
    ),
    "invoice": Plan(
        (
            Edit("shop/money.py", "int(cents * rate / 100)", "(cents * rate + 50) // 100"),
            Edit(
                "shop/invoice.py",
                "return net - percent(net, discount) + percent(net, tax)",
                "net -= percent(net, discount)\n    return net + percent(net, tax)",
            ),
        ),
        Edit("tests/test_invoice.py", "5), 13)", "5), 12)"),
    ),
}


def repairs(plan: Plan) -> Iterator[Reply]:
    """Reads the code and the tests, repairs all of it, and looks whether the tests pass."""
    yield call("I will see what there is.", "list_files")
    yield Reply("The code and its tests.", [read(path) for path in paths(plan)])
    yield call("Which tests fail?", "run", command="python -m unittest")
    for edit in plan.edits:
        yield call("This is wrong.", "edit_file", **edit._asdict())
    yield call("Once more.", "run", command="python -m unittest")
    yield Reply("All tests pass, and the issue's other cases are covered.")


def repairs_a_part(plan: Plan) -> Iterator[Reply]:
    """Stops when the tests pass that it sees; the issue asks for more."""
    yield call("First the failing tests.", "run", command="python -m unittest")
    yield call(None, "read_file", path=plan.edits[0].path)
    yield call("A small change is enough.", "edit_file", **plan.edits[0]._asdict())
    yield call(None, "run", command="python -m unittest")
    yield Reply("The tests pass.")


def edits_the_test(plan: Plan) -> Iterator[Reply]:
    """Changes what the test expects."""
    yield call("I will read the test.", "read_file", path=plan.test.path)
    yield call("The test expects the wrong thing.", "edit_file", **plan.test._asdict())
    yield call(None, "run", command="python -m unittest")
    yield Reply("The tests pass now.")


def wanders(plan: Plan) -> Iterator[Reply]:
    """Goes round in circles until its turns are used up."""
    edit = plan.edits[0]
    yield call("Let me look around.", "read_file", path="../../etc/passwd")
    yield call("Then without tests.", "run", command="pip install pytest")
    for number in itertools.count(1):
        yield call(f"Try {number}.", "edit_file", path=edit.path, old=f"{edit.old} # {number}", new=edit.new)
        yield call("Let me read it again.", "read_file", path=edit.path)


SAMPLES: Mapping[str, Sequence[Callable[[Plan], Iterator[Reply]]]] = {
    "slugs": (repairs, repairs_a_part, edits_the_test, wanders),
    "intervals": (repairs, repairs, repairs_a_part, wanders),
    "cache": (edits_the_test, repairs, repairs_a_part, repairs),
    "invoice": (repairs_a_part, wanders, edits_the_test, repairs_a_part),
}
"""What the first sample of a task does, the second, and so on; then again from the first."""

_unseeded = {repo: itertools.count() for repo in SAMPLES}


def attempt(request: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> Iterator[Reply]:
    """The answers of one conversation: by the seed of its first request, or where it has none, by turns."""
    said = json.dumps(messages)
    repo = next(task["repo"] for task in TASKS if json.dumps(task["problem_statement"]) in said)
    seed = request.get("seed")
    number = next(_unseeded[repo]) if seed is None else int(seed)
    return SAMPLES[repo][number % len(SAMPLES[repo])](PLANS[repo])


script = by_conversation(attempt)


def call(text: str | None, name: str, **arguments: str) -> Reply:
    return Reply(text, [(name, json.dumps(arguments))])


def read(path: str) -> tuple[str, str]:
    return "read_file", json.dumps({"path": path})


def paths(plan: Plan) -> list[str]:
    return [*sorted({edit.path for edit in plan.edits}), plan.test.path]
