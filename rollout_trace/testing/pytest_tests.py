"""The hooks for tests that are recorded or replayed: registered by the first one, as they import much."""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pytest

from rollout_trace.file.writer import JSONLWriter
from rollout_trace.process.options import Options

from . import late_calls
from ._hints import record_command
from .cassette import CassetteError, load
from .conversation_text import conversation_text
from .matching import MatchOptions
from .observed import CassetteOptions, Mode, ObservedTest, name_in_cassette
from .rollout import has_conversation

if TYPE_CHECKING:
    from .matching import Paint
    from .scripted import ScriptedServer

_OBSERVED = pytest.StashKey[ObservedTest]()
_ERROR = pytest.StashKey["BaseException | None"]()
_RESULT = pytest.StashKey[dict[str, str]]()
_OPTIONS = {"ignore", "normalize", "order", "timing", "engine"}
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
    marks = list(item.iter_markers("replay"))
    options = _options(item, marks) if marks else None
    test = ObservedTest(item.nodeid, _mode(item, options), options, _engine(item, marks))
    try:
        test.begin()
    except CassetteError as error:
        _fail(f"{error}.\nTo record it: {record_command(item.nodeid)}")
    item.stash[_OBSERVED], item.stash[_ERROR] = test, None
    cast(_Hooks, manager.get_plugin(_HOOKS)).running = test
    return test


def scripted(item: pytest.Item) -> ScriptedServer:
    """What the fixture ``scripted_llm`` gives."""
    if item.get_closest_marker("replay") is not None:
        _fail("a test with the mark replay cannot use scripted_llm too: both answer its calls.")
    return observed(item).script()


class _Hooks:
    running: ObservedTest | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Ends what a test left that the run was stopped in: it has no teardown of its own."""
        if self.running is not None:
            self.running.end(KeyboardInterrupt(), wait=0)
        late_calls.forget(all_of_them=True)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, None]:
        """Fails the test whose calls were not those of its cassette, whatever its agent made of that."""
        if (begun := item.stash.get(_OBSERVED, None)) is not None:
            begun.run_begins()
        outcome = yield
        # Or begun in the middle, by `request.getfixturevalue("rollout")`.
        test = item.stash.get(_OBSERVED, None)
        if test is None:
            return
        error = None if outcome.excinfo is None else outcome.excinfo[1]
        if isinstance(error, _STOPS):
            item.stash[_ERROR] = error
            return
        is_failure = not isinstance(error, _NO_FAILURES)
        try:
            test.run_ended(error if is_failure else None)
            problem = _problem(item, test, error) if is_failure else None
        except Exception as failure:
            # Raised from here, it would be a warning about pluggy, and the test would pass.
            problem = error or failure
        if problem is not None:
            outcome.force_exception(problem)
            error = problem
        item.stash[_ERROR] = error

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, None]:
        """Ends the recording, after the fixtures of the test."""
        outcome = yield
        test = item.stash.get(_OBSERVED, None)
        if test is None:
            return
        before = None if outcome.excinfo is None else outcome.excinfo[1]
        is_stopped = isinstance(before, _STOPS) or isinstance(item.stash[_ERROR], _STOPS)
        failure: BaseException | None = None
        try:
            test.end(item.stash[_ERROR], wait=0 if is_stopped else None)
            self.running = None
            _conclude(item, test)
        except CassetteError as error:
            failure = pytest.fail.Exception(str(error), pytrace=False)
        except Exception as error:
            failure = error
        if failure is not None and before is None:
            outcome.force_exception(failure)

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
            shown = [] if error is not None and has_conversation(error) else [_conversation(item, test)]
            shown += _kept_at(item)
            if shown:
                report.sections.append(("rollout", "\n\n".join(shown)))


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


def _conclude(item: pytest.Item, test: ObservedTest) -> None:
    """Writes the cassette and the rollout of a test that has ended."""
    error = item.stash[_ERROR]
    failed = error is not None and not isinstance(error, _NO_FAILURES)
    width, paint = _look(item.config)
    _write_rollout(item, test, failed=failed)
    if test.mode == "record":
        if failed:
            problems = "".join(f"\n  {problem}" for problem in test.unreachable())
            item.stash[_RESULT] = {"test": item.nodeid, "text": f"not recorded: the test failed{problems}"}
        else:
            item.stash[_RESULT] = {"test": item.nodeid, "text": test.save(width=width, paint=paint)}
    late = test.unanswered(width=width, paint=paint)
    if late:
        raise CassetteError("\n\n".join(late))


def summarize(terminal: Any, reports: Sequence[Any]) -> None:
    """Writes what was recorded."""
    terminal.section("recorded cassettes")
    for report in reports:
        result = report.rollout_trace
        terminal.write_line(f"{result['test']}: {result['text']}")


def _file_name(item: pytest.Item) -> str:
    """A test's name as that of a file."""
    return re.sub(r"[^\w.\[\]=,+-]+", "-", item.nodeid.partition("::")[2])[:150].strip("-.")


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
        paths = [item.path.parent / "cassettes" / item.path.stem / f"{_file_name(item)}.jsonl"]
    try:
        matching = MatchOptions(tuple(ignore), chosen.get("normalize"), chosen.get("order", "recorded"))
    except (TypeError, ValueError) as error:
        _misused(str(error).rstrip("."))
    return CassetteOptions(paths, matching, chosen.get("timing", False))


def _misused(what: str) -> NoReturn:
    _fail(f"@pytest.mark.replay: {what}.")


def _fail(text: str) -> NoReturn:
    """Fails the test with a text. Not `pytest.fail`: an exception that is being handled would be shown before it."""
    raise pytest.fail.Exception(text, pytrace=False) from None


def _mode(item: pytest.Item, options: CassetteOptions | None) -> Mode:
    asked = item.config.getoption("--replay") or item.config.getini("rollout_replay")
    if options is None or asked == "off":
        return "off"
    if asked != "auto":
        return cast(Mode, asked)
    # In CI nothing may call a model unasked.
    return "replay" if _in_ci() or _is_recorded(options, name_in_cassette(item.nodeid)) else "record"


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
    engine = given or item.config.getini("rollout_engine") or None
    try:
        Options(engine)
    except (TypeError, ValueError) as error:
        where = "@pytest.mark.replay" if given else "rollout_engine in the ini file"
        _fail(f"{where}: {str(error).rstrip('.')}.")
    return engine


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
    width, paint = _look(item.config)
    return conversation_text(test.trajectories(), width=width, paint=paint)


def _kept_at(item: pytest.Item) -> list[str]:
    """What to type to see the rollout that is kept; nothing where none is."""
    place = _rollout_path(item)
    return [] if place is None else [f"rollout-trace show {os.path.relpath(place)}"]


def _rollout_path(item: pytest.Item) -> Path | None:
    """The file of a test's rollout, in a folder that `rt.read` and the commands take as a whole; None: none is kept."""
    folder = item.config.getoption("--rollout-dir") or item.config.getini("rollout_dir")
    if not folder:
        return None
    return Path(item.config.invocation_params.dir, folder, f"{item.path.stem}-{_file_name(item)}.jsonl")


def _write_rollout(item: pytest.Item, test: ObservedTest, *, failed: bool) -> None:
    path = _rollout_path(item)
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
