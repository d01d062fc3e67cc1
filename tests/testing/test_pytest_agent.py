"""`examples/pytest_agent`, copied out of the checkout and run as its users run it, with the network refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.testing import ScriptedServer
from tests.amount import some
from tests.pytest_agent_copy import EXAMPLE, Copy, copy_to, outcomes


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return copy_to(tmp_path)


@pytest.mark.more
def test_everything_passes_offline(copy: Copy) -> None:
    before = {path.name: path.read_bytes() for path in (copy.folder / "tests" / "cassettes").iterdir()}

    code, output = copy.run()

    assert code == 0, output
    assert outcomes(output) == {"passed": 19}, output
    assert copy.refused == []
    after = {path.name: path.read_bytes() for path in (copy.folder / "tests" / "cassettes").iterdir()}
    assert after == before, "a replay changed a cassette"


@pytest.mark.more
def test_cassettes_are_replayed_on_two_workers(copy: Copy) -> None:
    code, output = copy.run("-n", "2", "tests/test_replayed.py")

    assert code == 0, output
    assert outcomes(output) == {"passed": 8}, output
    assert copy.refused == []


@pytest.mark.more
def test_without_the_replay_it_would_ask_the_network(copy: Copy) -> None:
    """The guard refuses, and is seen to refuse: without this the tests above could not fail."""
    code, output = copy.run(
        "--replay=off",
        "-k",
        "test_a_lost_lamp_is_paid_back",
        OPENAI_BASE_URL="http://model.invalid/v1",
        OPENAI_API_KEY="none",
    )

    assert code == 1, output
    assert set(copy.refused) == {"socket.getaddrinfo model.invalid"}


@dataclass(frozen=True)
class Change:
    """An edit of the agent, a test that it breaks, and what the failure has to say."""

    file: str
    old: str
    new: str
    test: str
    says: tuple[str, ...]


CHANGES = {
    "tool described otherwise": Change(
        "agent/tools.py",
        "Pays an order back in full.",
        "Pays a part of an order back.",
        "test_a_lost_lamp_is_paid_back",
        ("refund", "Pays an order back in full.", "Pays a part of an order back."),
    ),
    "tool renamed": Change(
        "agent/tools.py",
        '"search_orders",\n        "Finds',
        '"find_orders",\n        "Finds',
        "test_a_lost_lamp_is_paid_back",
        ("search_orders", "find_orders"),
    ),
    "tool result": Change(
        "agent/shop.py",
        '"lost in the post"',
        '"stolen"',
        "test_a_lost_lamp_is_paid_back",
        ("tool", "lost in the post", "stolen"),
    ),
    "model": Change(
        "agent/support.py", '"qwen3-8b"', '"qwen3-32b"', "test_a_lost_lamp_is_paid_back", ("qwen3-8b", "qwen3-32b")
    ),
    "sampling": Change(
        "agent/support.py",
        "MOST_TOKENS = 300",
        "MOST_TOKENS = 200",
        "test_a_lost_lamp_is_paid_back",
        ("max_tokens", "300", "200"),
    ),
    "order": Change(
        "agent/desk.py",
        '    text = answer(letter)\n    desk = triage(letter)["desk"]\n',
        '    desk = triage(letter)["desk"]\n    text = answer(letter)\n',
        "test_a_letter_is_answered_and_filed",
        ("call 1 came too early", "the recorded call 4"),
    ),
    "a call fewer": Change(
        "agent/desk.py",
        'triage(letter)["desk"]',
        '"refunds"',
        "test_a_letter_is_answered_and_filed",
        ("not made", "My lamp never came"),
    ),
    "in another process": Change(
        "agent/support.py",
        "Answer in one sentence.",
        "Answer in rhymes.",
        "test_replayed.py::test_the_command_line",
        ("system", "Answer in one sentence.", "Answer in rhymes."),
    ),
}


@pytest.mark.parametrize("name", some(CHANGES, "a call fewer"))
def test_a_regression_is_caught_and_named(copy: Copy, name: str) -> None:
    change = CHANGES[name]
    copy.edit(change.file, change.old, change.new)
    selected = f"tests/{change.test}" if "::" in change.test else f"tests/test_replayed.py::{change.test}"

    code, output = copy.run(selected)

    assert code == 1, output
    assert outcomes(output).keys() <= {"failed", "error"}, output
    missing = [text for text in change.says if text not in output]
    assert not missing, f"the failure does not say {missing}:\n{output}"
    assert copy.refused == []


def shown_in_readme(heading: str) -> list[str]:
    """The lines of the output in a section of the README, without those that begin with $."""
    section = (EXAMPLE / "README.md").read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```text\n(.*?)```", section, re.S)
    return [line.rstrip() for block in blocks for line in block.splitlines() if line.strip() and line[0] != "$"]


def is_shown(line: str, output: str) -> bool:
    """Whether pytest's output has the line, whatever time it says it took."""
    untimed = re.sub(r" in [\d.]+s", "", output)
    return re.sub(r" in [\d.]+s", "", line) in [one.rstrip() for one in untimed.splitlines()]


@pytest.mark.more
def test_the_readme_shows_what_a_changed_prompt_fails_with(copy: Copy) -> None:
    copy.edit("agent/support.py", "Answer in one sentence.", "Answer in rhymes.")

    code, output = copy.run("tests/test_replayed.py::test_a_lost_lamp_is_paid_back", CI="", COLUMNS="90")

    assert code == 1, output
    assert outcomes(output) == {"failed": 1}, output
    shown = shown_in_readme("What a failure looks like")
    assert any("recorded" in line and "Answer in one sentence." in line for line in shown)
    assert any("now" in line and "Answer in rhymes." in line for line in shown)
    assert [line for line in shown if not is_shown(line, output)] == [], output


@pytest.mark.more
def test_what_was_meant_is_recorded_again(copy: Copy) -> None:
    """The model is the one that the README names: rules, on a server."""
    copy.edit("agent/support.py", "Answer in one sentence.", "Answer in rhymes.")
    test = "tests/test_replayed.py::test_a_lost_lamp_is_paid_back"
    cassettes = copy.folder / "tests" / "cassettes"
    before = {path.name: path.read_bytes() for path in cassettes.iterdir()}

    with ScriptedServer(stand_in()) as server:
        address = {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "sk-not-in-the-file"}
        code, output = copy.run(test, "--replay=record", CI="", COLUMNS="90", **address)

    assert code == 0, output
    shown = shown_in_readme("Recording again")
    assert [line for line in shown if not is_shown(line, output)] == [], output
    after = {path.name: path.read_bytes() for path in cassettes.iterdir()}
    assert {name for name in after if after[name] != before.get(name)} == {"refund.jsonl"}
    assert b"sk-not-in-the-file" not in after["refund.jsonl"]
    assert copy.refused == []
    code, output = copy.run(test)
    assert code == 0, output


def stand_in() -> Callable[[dict[str, Any]], Any]:
    """The script in the example."""
    spec = spec_from_file_location("stand_in", EXAMPLE / "stand_in.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    script: Callable[[dict[str, Any]], Any] = module.script
    return script


def test_cassettes_are_rollouts_without_keys_or_addresses(copy: Copy) -> None:
    cassettes = sorted((copy.folder / "tests" / "cassettes").glob("*.jsonl"))
    assert cassettes
    for path in cassettes:
        trajectories = list(rt.read(path))
        assert all(one.exchanges for one in trajectories), path
        assert all("test" in (one.metadata or {}) for one in trajectories), path
        text = path.read_text().lower()
        assert not [word for word in ("authorization", "bearer", "127.0.0.1", "localhost") if word in text], path


def test_the_recorded_engine_gave_ids(copy: Copy) -> None:
    steps = [step for one in rt.read(copy.folder / "tests" / "cassettes" / "vllm.jsonl") for step in one.steps]
    assert {(step.token_source, step.status) for step in steps} == {("engine", "ok")}
