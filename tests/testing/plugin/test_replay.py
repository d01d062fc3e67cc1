"""Recorded once, replayed without the model server."""

from __future__ import annotations

import pytest

from .project import Project, exchanges_of, read

ONE = """
@pytest.mark.replay
def test_one(rollout):
    assert solve("What is the weather in Paris and Rome?") == "Paris: 5 degrees. Rome: 4 degrees."
    rollout.assert_steps(3)
"""


def test_recorded_and_replayed(project: Project) -> None:
    project.tests(ONE)
    recorded = project.record()
    recorded.assert_outcomes(passed=1)
    recorded.stdout.fnmatch_lines(["*recorded cassettes*", "test_agent.py::test_one: recorded, 3 exchanges"])
    project.replay().assert_outcomes(passed=1)


def test_a_cassette_is_a_file_of_rollouts_without_keys_and_addresses(project: Project) -> None:
    project.tests(ONE)
    project.record().assert_outcomes(passed=1)
    (trajectory,) = project.cassette("cassettes/test_agent/test_one.jsonl")
    assert [step.status for step in trajectory.steps] == ["ok"] * 3
    assert [exchange.call_id for exchange in trajectory.exchanges] == [step.call_id for step in trajectory.steps]
    text = read(project.pytester.path / "cassettes/test_agent/test_one.jsonl")
    for secret in ("sk-proj", "127.0.0.1", "authorization", "Bearer", str(project.pytester.path)):
        assert secret not in text


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("You know the weather.", "You know the time.", "*messages.0.content*"),
        ('"The weather of a city."', '"The climate of a city."', "*tools.0.function.description*"),
        ('MODEL = "scripted"', 'MODEL = "other"', "*model*"),
        ("0.5", "0.7", "*temperature*"),
        ('degrees"', 'degrees C"', "*degrees C*"),
    ],
    ids=["prompt", "tool", "model", "sampling", "tool-result"],
)
def test_a_changed_agent_fails_with_what_changed(project: Project, old: str, new: str, named: str) -> None:
    project.tests(ONE)
    project.record().assert_outcomes(passed=1)
    project.change(old, new)
    result = project.replay()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([named, "*pytest --replay=record*"])
    result.stdout.fnmatch_lines(["*agent.py:*: in solve"])


def test_a_changed_order_fails(project: Project) -> None:
    project.tests("""
@pytest.mark.replay
def test_two():
    for city in ("Paris", "Rome"):
        solve(f"What is the weather in {city}?")
""")
    project.record().assert_outcomes(passed=1)
    project.change('("Paris", "Rome")', '("Rome", "Paris")', "test_agent.py")
    result = project.replay()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*should come*"])
    project.change("@pytest.mark.replay", "@pytest.mark.replay(order='free')", "test_agent.py")
    project.replay().assert_outcomes(passed=1)


def test_a_recorded_call_that_is_not_made_fails(project: Project) -> None:
    project.tests(ONE)
    project.record().assert_outcomes(passed=1)
    project.change('solve("What', '"Paris: 5 degrees. Rome: 4 degrees." or solve("What', "test_agent.py")
    project.change("rollout.assert_steps(3)", "pass", "test_agent.py")
    result = project.replay()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["3 recorded calls were not made:", "   1. scripted, user: *"])


def test_an_agent_that_swallows_the_error_fails_too(project: Project) -> None:
    project.tests("""
@pytest.mark.replay
def test_calm():
    try:
        solve("What is the weather in Paris?")
    except Exception:
        pass
""")
    project.record().assert_outcomes(passed=1)
    project.change("in Paris", "in Oslo", "test_agent.py")
    result = project.replay()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*messages.1.content*"])


def test_streams_replay_chunk_by_chunk(project: Project) -> None:
    project.tests("""
@pytest.mark.replay("tapes/stream.jsonl")
def test_stream(rollout):
    assert solve("What is the weather in Paris?", stream=True) == "Paris: 5 degrees."
    print("TEXT", rollout.text)

@pytest.mark.replay("tapes/chunks.jsonl")
def test_chunks():
    import httpx2
    from agent import client
    body = {"model": "scripted", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    with httpx2.Client() as http, client() as sdk:
        with http.stream("POST", f"{sdk.base_url}chat/completions", json=body) as response:
            print("SIZES", [len(chunk) for chunk in response.iter_raw()])
""")
    first = project.record("-s").stdout
    again = project.replay("-s").stdout
    (sizes,) = [line for line in first.lines if "SIZES" in line]
    again.fnmatch_lines([sizes.replace("[", "[[]")])
    (exchange,) = exchanges_of(project.cassette("tapes/chunks.jsonl"))
    assert sizes.lstrip(".") == f"SIZES {list(exchange.chunk_sizes)}"
    assert len(exchange.chunk_times) == len(exchange.chunk_sizes) > 3


def test_keys_of_the_environment_are_not_in_a_cassette(project: Project) -> None:
    project.tests("""
import os

@pytest.mark.replay("tape.jsonl")
def test_one():
    solve("What is this: " + os.environ["SEARCH_API_KEY"])
""")
    project.monkeypatch.setenv("SEARCH_API_KEY", "search-0123456789abc")
    project.record().assert_outcomes(passed=1)
    assert "search-0123456789abc" not in read(project.pytester.path / "tape.jsonl")
    assert "search-0123456789abc" in str(project.model.requests[-1].json)
    project.replay().assert_outcomes(passed=1)
