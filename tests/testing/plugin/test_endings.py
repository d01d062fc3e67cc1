"""Tests that end while calls go on, and runs that end in the middle of a test."""

from __future__ import annotations

import pytest

from rollout_trace.testing import Fault, Reply, ScriptedServer
from tests.amount import some

from .project import Project, exchanges_of

INTERRUPTED = """
import os

@pytest.mark.replay
def test_one():
    try:
        solve("What is the weather in Paris?")
    except Exception:
        pass
    if os.environ.get("STOP") == "exit":
        pytest.exit("enough")
    if os.environ.get("STOP"):
        raise KeyboardInterrupt

def test_two():
    print("THE SECOND")
"""


@pytest.mark.more
@pytest.mark.parametrize("stop", some(["exit", "interrupt"], "interrupt"))
def test_a_run_that_is_stopped_stops(project: Project, stop: str) -> None:
    project.tests(INTERRUPTED)
    project.record().assert_outcomes(passed=2)
    project.change("in Paris", "in Oslo", "test_agent.py")
    project.monkeypatch.setenv("STOP", stop)
    project.pytester.makeconftest("""
def pytest_unconfigure():
    import socket
    from rollout_trace.process import children as environment, redirect as routes
    print("LEFT", routes._routes, environment.for_children, socket.getaddrinfo.__module__)
""")
    result = project.run_apart("-s")
    result.stdout.no_fnmatch_line("*THE SECOND*")
    result.stdout.fnmatch_lines(["*LEFT () {} socket*"])


LEFT_OPEN = """
from agent import begin, client

LEFT = []

@pytest.mark.replay
def test_open():
    LEFT.append(client())
    stream = LEFT[0].chat.completions.create(model="scripted", messages=begin("hello"), stream=True)
    LEFT.append(stream)
    next(stream)

def test_two():
    from rollout_trace.process import redirect as routes
    assert not routes._routes
"""


def test_a_stream_that_is_left_open_ends_with_the_test(
    project: Project, model: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollout_trace.testing.observed._LONGEST_WAIT", 0.2)
    model.script = Fault(Reply("long " * 50), hold_after=6)
    project.tests(LEFT_OPEN)
    recorded = project.record()
    recorded.assert_outcomes(passed=2)
    recorded.stdout.fnmatch_lines(["*recorded, 1 exchange (some had not ended 0.2 s after the test, and were cut off)"])
    (exchange,) = exchanges_of(project.cassette("cassettes/test_agent/test_open.jsonl"))
    assert exchange.outcome == "closed"
    monkeypatch.setattr("rollout_trace.testing.observed._LONGEST_WAIT", 600.0)
    project.replay().assert_outcomes(passed=2)


LATE = """
import threading

THREADS, ERRORS, GO = [], [], threading.Event()

def later():
    GO.wait()
    try:
        solve("And now?")
    except Exception as error:
        ERRORS.append(str(error))

@pytest.mark.replay
def test_one():
    solve("hello")
    THREADS.append(threading.Thread(target=later))
    THREADS[0].start()

def test_two():
    GO.set()
    THREADS[0].join()
    print("ERRORS", ERRORS)
"""


def test_a_thread_that_outlives_its_test_makes_no_live_calls(project: Project, model: ScriptedServer) -> None:
    project.tests(LATE)
    project.record().assert_outcomes(passed=2)
    project.monkeypatch.setenv("MODEL_URL", model.base_url)
    result = project.replay("-s")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        ["*a call of a thread that test_agent.py::test_one began was refused, as that test has*"]
    )
