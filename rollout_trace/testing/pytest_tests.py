"""The hooks for tests that are recorded or replayed: registered by the first one, as they import much."""

from __future__ import annotations

import shlex
import traceback
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from rollout_trace.file.writer import JSONLWriter

from . import live_calls
from ._explain import record_command
from ._mark import as_typed, fail, from_here, rollout_path, test_for
from .cassette import CassetteError
from .conversation_text import conversation_text
from .matching import Paint
from .observed import ObservedTest
from .rollout import has_conversation
from .scripted import ScriptedServer

_OBSERVED = pytest.StashKey[ObservedTest]()
_ERROR = pytest.StashKey["BaseException | None"]()
"""What ended the test, if an exception did."""
_OUTCOME = pytest.StashKey[str]()
"""``failed`` or ``skipped``, once it is; an expected failure is neither."""
_RESULT = pytest.StashKey[dict[str, str]]()
_HOOKS = "rollout_trace_tests"
_NO_FAILURES = (pytest.skip.Exception, pytest.xfail.Exception)
_STOPS = (KeyboardInterrupt, pytest.exit.Exception)
"""What ends the whole run: nothing may take its place, and nobody is to wait."""
_STYLES = {"dim": "light"}
"""The names of pytest's terminal for styles that it calls otherwise."""


def observed(item: pytest.Item) -> ObservedTest:
    """The record of a test that runs; it begins with the first one who asks."""
    found = item.stash.get(_OBSERVED, None)
    if found is not None:
        return found
    manager = item.config.pluginmanager
    if not manager.has_plugin(_HOOKS):
        manager.register(_Hooks(), _HOOKS)
    test = test_for(item)
    try:
        test.begin()
    except CassetteError as error:
        fail(f"{error}.\nTo record it: {record_command(as_typed(item))}")
    item.stash[_OBSERVED], item.stash[_ERROR], item.stash[_OUTCOME] = test, None, ""
    cast(_Hooks, manager.get_plugin(_HOOKS)).running = test
    return test


def scripted(item: pytest.Item) -> ScriptedServer:
    """Returns the value of the fixture ``scripted_llm``."""
    if item.get_closest_marker("replay") is not None:
        fail("a test with the mark replay cannot use scripted_llm too: both answer its calls.")
    return observed(item).script()


class _Hooks:
    running: ObservedTest | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Ends what a test left that the run was stopped in: it has no teardown of its own."""
        if self.running is not None:
            self.running.end(KeyboardInterrupt(), wait=0)
        live_calls.forget(all_of_them=True)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, None]:
        """Fails a test whose calls were not those of its cassette, even if its agent caught the error."""
        if (begun := item.stash.get(_OBSERVED, None)) is not None:
            begun.run_begins()
        outcome = yield
        # Or begun in the middle, by `request.getfixturevalue("rollout")`.
        test = item.stash.get(_OBSERVED, None)
        if test is None:
            return
        error = None if outcome.excinfo is None else outcome.excinfo[1]
        problem = None
        if not isinstance(error, _STOPS):
            is_failure = not isinstance(error, _NO_FAILURES)
            try:
                test.run_ended(error if is_failure else None)
                problem = _problem(item, test, error) if is_failure else None
            except Exception as bug:
                # Raised from here, it would be a warning about pluggy, and the test would pass.
                problem = _reported(item, "call", _defect("the calls were compared", bug), error)
        if problem is not None:
            outcome.force_exception(problem)
        item.stash[_ERROR] = problem or error

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, None]:
        """Ends the recording, after the fixtures of the test."""
        outcome = yield
        test = item.stash.get(_OBSERVED, None)
        if test is None:
            return
        error = None if outcome.excinfo is None else outcome.excinfo[1]
        is_stopped = isinstance(error, _STOPS) or isinstance(item.stash[_ERROR], _STOPS)
        try:
            test.end(item.stash[_ERROR] or error, wait=0 if is_stopped else None)
            self.running = None
            text = "\n\n".join(_conclude(item, test, error))
        except Exception as bug:
            text = _defect("the recording was ended", bug)
        problem = _reported(item, "teardown", text, error) if text else None
        if problem is not None:
            outcome.force_exception(problem)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
        """Adds the conversation to the report of a test that failed, and the result of recording to its last one."""
        outcome = yield
        test = item.stash.get(_OBSERVED, None)
        if test is None:
            return
        report = outcome.get_result()
        if report.when == "teardown":
            # A test may run again (pytest-rerunfailures): then it begins anew.
            del item.stash[_OBSERVED]
            if _RESULT in item.stash:
                report.rollout_trace = item.stash[_RESULT]
                del item.stash[_RESULT]
        elif report.failed:
            error = item.stash[_ERROR] = call.excinfo.value if call.excinfo is not None else None
            item.stash[_OUTCOME] = "failed"
            test.failed()
            if not isinstance(error, _STOPS):
                shown = [] if error is not None and has_conversation(error) else [_conversation(item, test)]
                report.sections += [("rollout", text) for text in ["\n\n".join(shown + _kept_at(item))] if text]
        elif report.skipped and not hasattr(report, "wasxfail"):
            item.stash[_OUTCOME] = "skipped"


def _reported(item: pytest.Item, when: str, text: str, error: BaseException | None) -> BaseException | None:
    """Returns what to fail a test with; None if it has already failed, and then the reason becomes a section."""
    if error is None:
        return pytest.fail.Exception(text, pytrace=False)
    item.add_report_section(when, "rollout", text)
    return None


def _defect(doing: str, error: Exception) -> str:
    """Returns the report for an exception that only this package can have caused."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    what = f"{type(error).__name__}: {str(error)[:500]}"
    return f"a defect of rollout_trace, please report it: while {doing}, {place} raised {what}"


def _problem(item: pytest.Item, test: ObservedTest, error: BaseException | None) -> BaseException | None:
    """Returns what to fail the test with instead of its own outcome; None to keep that."""
    width, paint = _look(item.config)
    texts = test.unanswered(width=width, paint=paint)
    if texts and error is not None:
        texts.append(_made_at(item, error))
    elif not texts and error is None and (unused := test.unused(width=width, paint=paint)):
        texts = [unused]
    return pytest.fail.Exception("\n\n".join(filter(None, texts)), pytrace=False) if texts else None


def _made_at(item: pytest.Item, error: BaseException) -> str:
    """Returns where in the user's code the agent's uncaught exception was raised."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_relative_to(item.config.rootpath) and "site-packages" not in path.parts:
            place = f"{path.relative_to(item.config.rootpath)}:{frame.lineno}: in {frame.name}"
            return f"The test ended with {type(error).__name__}, from {place}"
    return ""


def _conclude(item: pytest.Item, test: ObservedTest, error: BaseException | None) -> list[str]:
    """Writes the cassette and the rollout of a test that has ended; returns what went wrong, for people.

    ``error`` is what the end of a fixture raised.
    """
    failed = item.stash[_OUTCOME] == "failed" or not (error is None or isinstance(error, _NO_FAILURES))
    problems: list[str] = []
    # The recording first: it may have cost something.
    for write in (_write_cassette, _write_rollout):
        try:
            write(item, test, failed=failed)
        except CassetteError as found:
            problems.append(str(found))
    width, paint = _look(item.config)
    return [*problems, *test.unanswered(width=width, paint=paint)]


def _write_cassette(item: pytest.Item, test: ObservedTest, *, failed: bool) -> None:
    if test.mode != "record":
        return
    width, paint = _look(item.config)
    if failed:
        text = "".join(["not recorded: the test failed", *(f"\n  {problem}" for problem in test.unreachable())])
    elif item.stash[_OUTCOME] == "skipped" and test.was_recorded:
        # It skips perhaps because there is no model to record: what was recorded is worth more.
        text = "not recorded: the test was skipped; its cassette stays as it is"
    else:
        text = test.save(width=width, paint=paint)
    item.stash[_RESULT] = {"test": item.nodeid, "text": text}


def _write_rollout(item: pytest.Item, test: ObservedTest, *, failed: bool) -> None:
    path = rollout_path(item)
    keep = item.config.getoption("--rollout-keep") or item.config.getini("rollout_keep")
    if path is None or not (failed or keep == "all"):
        return
    try:
        # That of an earlier run is of another rollout.
        path.unlink(missing_ok=True)
        with JSONLWriter(path) as writer:
            for trajectory in test.trajectories():
                writer.write(trajectory)
    except (OSError, ValueError) as error:
        raise CassetteError(f"the rollout could not be written to {path}: {error}") from error


def summarize(terminal: Any, reports: Sequence[Any]) -> None:
    """Writes what was recorded."""
    terminal.section("recorded cassettes")
    for report in reports:
        result = report.rollout_trace
        terminal.write_line(f"{result['test']}: {result['text']}")


def _look(config: pytest.Config) -> tuple[int, Paint | None]:
    """Width and colours of the terminal that shows the result."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return 100, None
    writer = config.get_terminal_writer()

    def paint(text: str, style: str) -> str:
        return writer.markup(text, **{_STYLES.get(style, style): True})

    return max(60, min(writer.fullwidth, 140)), paint if writer.hasmarkup else None


def _conversation(item: pytest.Item, test: ObservedTest) -> str:
    try:
        width, paint = _look(item.config)
        return conversation_text(test.trajectories(), width=width, paint=paint)
    except Exception as bug:
        return _defect("the conversation was shown", bug)


def _kept_at(item: pytest.Item) -> list[str]:
    """Returns the command that shows the kept rollout; nothing if none is kept."""
    place = rollout_path(item)
    return [] if place is None else [f"rollout-trace show {shlex.quote(from_here(item.config, place))}"]
