"""What is recorded of tests that fail, are skipped, or are expected to fail; and interrupts."""

from __future__ import annotations

import pytest

from .project import Project, exchanges_of

PATH = "cassettes/test_agent/test_one.jsonl"


def test_an_expected_failure_is_recorded(project: Project) -> None:
    project.tests("""
@pytest.mark.replay
@pytest.mark.xfail(strict=True)
def test_one():
    solve("hello")
    assert False
""")
    project.record().assert_outcomes(xfailed=1)
    assert len(exchanges_of(project.cassette(PATH))) == 1
    project.replay().assert_outcomes(xfailed=1)


def test_an_unexpected_success_is_not_recorded(project: Project) -> None:
    project.tests("""
@pytest.mark.replay
@pytest.mark.xfail(strict=True)
def test_one():
    solve("hello")
""")
    result = project.record()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["test  1 step, failed", "*test_one: not recorded: the test failed"])


def test_a_test_whose_fixture_fails_at_its_end_is_not_recorded(project: Project) -> None:
    project.tests("""
@pytest.fixture
def checked():
    yield
    raise ValueError("not as it should be")

@pytest.mark.replay
def test_one(checked):
    solve("hello")
""")
    result = project.record("--rollout-dir=out")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*test_one: not recorded: the test failed"])
    assert (project.pytester.path / "out/test_agent-test_one.jsonl").exists()


def test_a_skipped_test_keeps_the_cassette_that_it_has(project: Project) -> None:
    project.tests("""
import os

@pytest.mark.replay
def test_one():
    if "NO_KEY" in os.environ:
        pytest.skip("no key")
    solve("hello")
""")
    project.record().assert_outcomes(passed=1)
    project.monkeypatch.setenv("NO_KEY", "1")
    result = project.record()
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*test_one: not recorded: the test was skipped; its cassette stays as it is"])
    project.monkeypatch.delenv("NO_KEY")
    project.replay().assert_outcomes(passed=1)


def test_a_rollout_that_cannot_be_written_does_not_cost_the_recording(project: Project) -> None:
    project.tests("@pytest.mark.replay\ndef test_one():\n    solve('hello')\n")
    (project.pytester.path / "out").write_text("a file")
    result = project.record("--rollout-dir=out", "--rollout-keep=all")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["the rollout could not be written to *"])
    assert len(exchanges_of(project.cassette(PATH))) == 1


@pytest.mark.more
@pytest.mark.parametrize("ends", ["raise KeyboardInterrupt", "pytest.exit('enough')"])
def test_an_interrupt_ends_the_run(project: Project, ends: str) -> None:
    project.tests("""
@pytest.mark.replay
def test_one(city="Paris"):
    try:
        solve(f"What is the weather in {city}?")
    finally:
        pass

def test_two():
    print("GOES" " ON")
""")
    project.record().assert_outcomes(passed=2)
    project.change("in {city}", "in Oslo", "test_agent.py")
    project.change("        pass\n", f"        {ends}\n", "test_agent.py")
    result = project.run_apart("-s")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.no_fnmatch_line("*GOES ON*")


@pytest.mark.parametrize("body", ["solve('hello')", "assert False, 'of the test'"])
def test_a_defect_of_the_plugin_is_one_failure(project: Project, body: str) -> None:
    project.tests(
        f"@pytest.mark.replay\ndef test_one():\n    solve('hello')\n    {body}\n\ndef test_two():\n    pass\n"
    )
    # Whatever it is: here the terminal's colours cannot be asked for.
    project.pytester.makeconftest("""
import pytest

@pytest.fixture(autouse=True)
def broken(request, monkeypatch):
    yield
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    item.config.get_terminal_writer = lambda: 1 / 0
""")
    result = project.record()
    text = result.stdout.str()
    assert "a defect of rollout_trace, please report it: while" in text
    assert "ZeroDivisionError" in text
    assert "INTERNALERROR" not in text
    assert "PluggyTeardownRaisedWarning" not in text
