"""The hooks for tests that are recorded or replayed: registered by the first one, as they import much."""

from __future__ import annotations

import os
import shlex
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pytest

from rollout_trace.file.writer import JSONLWriter

from ._test_names import as_typed, file_name, from_here, rollout_path
from .cassette import CassetteError, load
from .conversation_text import conversation_text
from .matching import MatchOptions
from .observed import CassetteOptions, Mode, ObservedTest, name_in_cassette
from .scripted import ScriptedServer
from .upstreams import child_environment

if TYPE_CHECKING:
    from .matching import Paint

_OBSERVED = pytest.StashKey[ObservedTest]()
_ERROR = pytest.StashKey["BaseException | None"]()
_OUTCOME = pytest.StashKey[str]()
"""``failed`` or ``skipped``, as pytest reports it: not what an expected failure is."""
_RESULT = pytest.StashKey[dict[str, str]]()
_OPTIONS = {"ignore", "normalize", "order", "timing", "engine"}
_HOOKS = "rollout_trace_tests"
_NO_FAILURES = (pytest.skip.Exception, pytest.xfail.Exception)
_ENDS_THE_RUN = (KeyboardInterrupt, pytest.exit.Exception)
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
    marks = list(item.iter_markers("replay"))
    try:
        options = _options(item, marks) if marks else None
        mode = _mode(item, options)
        test = ObservedTest(as_typed(item), mode, options, _engine(item, marks))
        test.begin()
    except CassetteError as error:
        raise pytest.fail.Exception(f"{error}.\n{_how_to_record(item)}", pytrace=False) from None
    item.stash[_OBSERVED], item.stash[_ERROR], item.stash[_OUTCOME] = test, None, ""
    return test


def scripted(item: pytest.Item) -> Generator[ScriptedServer, None, None]:
    """The fixture ``scripted_llm``."""
    if item.get_closest_marker("replay") is not None:
        pytest.fail("a test with the mark replay cannot use scripted_llm too: both answer its calls.", pytrace=False)
    test = observed(item)
    server = ScriptedServer([])
    test.stand_in(server, sets_keys=True)
    test.set_variables(child_environment(server.url))
    yield server
    if server.errors and item.stash[_ERROR] is None:
        raise server.errors[0]


class _Hooks:
    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, None]:
        """Fails the test whose calls were not those of its cassette, whatever its agent made of that."""
        outcome = yield
        test = item.stash.get(_OBSERVED, None)
        error = None if outcome.excinfo is None else outcome.excinfo[1]
        if test is None or isinstance(error, _ENDS_THE_RUN):
            return
        is_failure = not isinstance(error, _NO_FAILURES)
        problem = None
        try:
            test.run_ended(error if is_failure else None)
            problem = _problem(item, test, error) if is_failure else None
        except Exception as bug:
            if error is None:
                problem = pytest.fail.Exception(_defect("the calls were compared", bug), pytrace=False)
            else:
                item.add_report_section("call", "rollout", _defect("the calls were compared", bug))
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
        try:
            problem = "\n\n".join(_conclude(item, test, error))
        except Exception as bug:
            problem = _defect("the recording was ended", bug)
        if problem and error is None:
            outcome.force_exception(pytest.fail.Exception(problem, pytrace=False))
        elif problem:
            item.add_report_section("teardown", "rollout", problem)

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
            if not isinstance(error, _ENDS_THE_RUN):
                report.sections.append(("rollout", _conversation(item, test)))
        elif report.skipped and not hasattr(report, "wasxfail"):
            item.stash[_OUTCOME] = "skipped"


def _defect(doing: str, error: Exception) -> str:
    """What to say of an exception that none but this package can be the cause of."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        place, trace = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}", trace.tb_next
    what = f"{type(error).__name__}: {str(error)[:500]}"
    return f"a defect of rollout_trace, please report it: while {doing}, {place} raised {what}"


def _problem(item: pytest.Item, test: ObservedTest, error: BaseException | None) -> BaseException | None:
    """What to fail the test with instead of its own outcome; None: that stays."""
    width, paint = _look(item.config)
    texts = test.unanswered(width=width, paint=paint)
    if texts and error is not None:
        texts.append(_made_at(item, error))
    elif not texts and error is None and (unused := test.unused(width=width, paint=paint)):
        texts = [unused]
    return pytest.fail.Exception("\n\n".join(filter(None, texts)), pytrace=False) if texts else None


def _made_at(item: pytest.Item, error: BaseException) -> str:
    """Where in the user's own code the exception came up that the agent got, and did not catch."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        code, line = trace.tb_frame.f_code, trace.tb_lineno
        path = Path(code.co_filename)
        if path.is_relative_to(item.config.rootpath) and "site-packages" not in path.parts:
            place = f"{path.relative_to(item.config.rootpath)}:{line}: in {code.co_name}"
        trace = trace.tb_next
    return f"The test ended with {type(error).__name__}, from {place}" if place else ""


def _conclude(item: pytest.Item, test: ObservedTest, error: BaseException | None) -> list[str]:
    """Closes what the test opened, and writes its cassette and its rollout; returns what went wrong, for people.

    ``error`` is what the end of a fixture raised.
    """
    failed = item.stash[_OUTCOME] == "failed" or not (error is None or isinstance(error, _NO_FAILURES))
    test.end(item.stash[_ERROR] or error)
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


def summarize(terminal: Any, reports: Sequence[Any]) -> None:
    """Writes what was recorded."""
    terminal.section("recorded cassettes")
    for report in reports:
        result = report.rollout_trace
        terminal.write_line(f"{result['test']}: {result['text']}")


def _options(item: pytest.Item, marks: Sequence[pytest.Mark]) -> CassetteOptions:
    """What the marks of a test ask for: those nearer to it come first."""
    chosen: dict[str, Any] = {}
    ignore: list[str] = []
    paths: list[Path] = []
    for mark in marks:
        unknown = sorted(set(mark.kwargs) - _OPTIONS)
        if unknown:
            _misused(f"there is no option {unknown[0]!r}; the options are {', '.join(sorted(_OPTIONS))}")
        for path in mark.args:
            if not isinstance(path, (str, os.PathLike)):
                _misused(f"{path!r:.80} is no path of a cassette")
            paths.append(item.path.parent / path)
        ignored = mark.kwargs.get("ignore", ())
        ignore += [ignored] if isinstance(ignored, str) else list(ignored)
        chosen = {**mark.kwargs, **chosen}
    if not isinstance(chosen.get("timing", False), bool):
        _misused(f"timing={chosen['timing']!r}: expected True or False")
    if not paths:
        paths = [item.path.parent / "cassettes" / item.path.stem / f"{file_name(item.nodeid.partition('::')[2])}.jsonl"]
    try:
        matching = MatchOptions(tuple(ignore), chosen.get("normalize"), chosen.get("order", "recorded"))
    except (TypeError, ValueError) as error:
        _misused(str(error))
    return CassetteOptions(paths, matching, chosen.get("timing", False))


def _misused(what: str) -> NoReturn:
    pytest.fail(f"@pytest.mark.replay: {what}.", pytrace=False)


def _mode(item: pytest.Item, options: CassetteOptions | None) -> Mode:
    asked = item.config.getoption("--replay") or item.config.getini("rollout_replay")
    if options is None or asked == "off":
        return "off"
    if asked != "auto":
        return cast(Mode, asked)
    # In CI nothing may call a model unasked.
    return "replay" if _in_ci() or _is_recorded(options, name_in_cassette(as_typed(item))) else "record"


def _in_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false", "no")


def _is_recorded(options: CassetteOptions, name: str) -> bool:
    try:
        return all(bool(load(path, name)) for path in options.paths)
    except CassetteError:
        # One that is there and broken is not replaced unasked.
        return any(path.exists() and path.stat().st_size for path in options.paths)


def _engine(item: pytest.Item, marks: Sequence[pytest.Mark]) -> Any:
    given = next((mark.kwargs["engine"] for mark in marks if "engine" in mark.kwargs), None)
    return given or item.config.getini("rollout_engine") or None


def _how_to_record(item: pytest.Item) -> str:
    return f"To record it: pytest --replay=record {shlex.quote(as_typed(item))}"


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
        text = conversation_text(test.trajectories(), width=width, paint=paint)
    except Exception as bug:
        text = _defect("the conversation was shown", bug)
    place = rollout_path(item)
    return text if place is None else f"{text}\n\nrollout-trace show {shlex.quote(from_here(item.config, place))}"


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
