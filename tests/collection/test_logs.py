"""Log files of rollouts, and the loggers of agents."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import re
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rollout_trace as rt
from rollout_trace import credentials
from rollout_trace.collection import logs as logs_module
from rollout_trace.collection.items import RetryPolicy, TaskItem
from rollout_trace.collection.job import Job, Work
from rollout_trace.collection.logs import PARENT, LogFile, RolloutLog, RolloutLogs, safe_name

ENTRY = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ")
other = logging.getLogger("tests.agent")


def job(task: str = "t", index: int = 0, attempt: int = 1) -> Job:
    """An attempt."""
    work = Work(run_id="r1", name="agent", agent=cast(Any, None), rewards=None, retries=RetryPolicy(), output="x.jsonl")
    return Job(work=work, task=TaskItem(task, None, "0"), index=index, attempt=attempt)


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[RolloutLogs]:
    """Installed, in an empty folder."""
    found = RolloutLogs(str(tmp_path / "logs"))
    found.install()
    yield found
    found.uninstall()


def file_of(log: RolloutLog) -> LogFile:
    """It has one."""
    assert log.file is not None
    return log.file


def path_of(log: RolloutLog) -> Path:
    """Of its file."""
    return Path(file_of(log).path)


def entries(log: RolloutLog) -> list[str]:
    """The lines of a file without their times; not the first, which says whose it is."""
    first, *lines = path_of(log).read_text().splitlines()
    assert first.startswith("# task ")
    return [ENTRY.sub("", line) for line in lines]


# --- What is in a file


def test_the_file_of_a_rollout(logs: RolloutLogs, tmp_path: Path) -> None:
    """Its own records and those of others in its context, in their order, and the exception that ended it."""
    log = logs.begin(job("gsm8k", 3, 2), "T1")
    log.logger.info("one %d", 1)
    other.warning("two")
    logging.warning("three")
    try:
        raise ValueError("no answer\n2030-01-01 INFO imitated")
    except ValueError as error:
        log.logger.exception("four")
        log.end(error)
    assert path_of(log) == tmp_path / "logs" / "gsm8k-3-2.log"
    assert path_of(log).read_text().startswith("# task gsm8k, sample 3, attempt 2, trajectory T1, run r1\n")
    found = entries(log)
    assert [line for line in found if not line.startswith("    ")] == [
        "INFO rollout_trace.rollout.gsm8k.3: one 1",
        "WARNING tests.agent: two",
        "WARNING root: three",
        "ERROR rollout_trace.rollout.gsm8k.3: four",
    ]
    assert found.count("    ValueError: no answer") == 2
    assert found[-1] == "    2030-01-01 INFO imitated"


def test_a_rollout_that_logs_nothing_has_a_file(logs: RolloutLogs) -> None:
    """Nobody has to ask whether it was lost. It is opened at the end."""
    log = logs.begin(job(), "T1")
    assert not path_of(log).exists()
    log.end()
    assert entries(log) == ["# ended"]


def test_levels_are_the_users(logs: RolloutLogs, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a level leaves out is in no file; a rollout's own logger is above the level of the root."""
    log = logs.begin(job(), "T1")
    other.info("below the level of the root")
    log.logger.debug("kept")
    monkeypatch.setattr(logging.getLogger(PARENT), "level", logging.WARNING)
    log.logger.info("below the level of the loggers of rollouts")
    log.logger.warning("kept, too")
    log.logger.getChild("tool").error("kept from below")
    log.end()
    assert [line.partition(": ")[2] for line in entries(log)[:-1]] == ["kept", "kept, too", "kept from below"]


def test_logging_that_is_disabled(logs: RolloutLogs) -> None:
    """``logging.disable`` is for all."""
    log = logs.begin(job(), "T1")
    logging.disable(logging.INFO)
    try:
        log.logger.info("no")
        log.logger.warning("yes")
    finally:
        logging.disable(logging.NOTSET)
    log.end()
    assert len(entries(log)) == 2


def test_handlers_get_what_their_level_says(logs: RolloutLogs, caplog: pytest.LogCaptureFixture) -> None:
    """Not more than without files: INFO of an agent is not on a terminal that did not ask for it."""
    log = logs.begin(job(), "T1")
    log.logger.info("for the file")
    log.logger.warning("for both")
    other.warning("of another logger")
    log.end()
    assert caplog.messages == ["for both", "of another logger"]
    assert len(entries(log)) == 4


def test_a_logger_that_does_not_propagate(logs: RolloutLogs, monkeypatch: pytest.MonkeyPatch) -> None:
    """It belongs to the rollout as well."""
    monkeypatch.setattr(other, "propagate", False)
    log = logs.begin(job(), "T1")
    other.warning("hidden from the root")
    log.end()
    assert entries(log)[0].endswith("hidden from the root")


def test_a_filter_of_the_users(logs: RolloutLogs) -> None:
    """What it leaves out is not in the file."""

    def no_secrets(record: logging.LogRecord) -> bool:
        return "secret" not in record.getMessage()

    log = logs.begin(job(), "T1")
    other.addFilter(no_secrets)
    try:
        other.warning("a secret")
        other.warning("no")
    finally:
        other.removeFilter(no_secrets)
    log.end()
    assert len(entries(log)) == 2


def test_keys_and_control_characters(logs: RolloutLogs) -> None:
    """The first are cut, the others escaped: files are shown on terminals."""
    credentials.remember("sk-abc123456789")
    log = logs.begin(job("red \x1b[31m\n# task"), "T1")
    other.warning("with sk-abc123456789 and \x1b[2J\ttab \udc80")
    log.end(RuntimeError("sk-abc123456789 \x07"))
    assert path_of(log).read_text().splitlines()[0].startswith(r"# task red \x1b[31m\n# task, sample 0")
    found = entries(log)
    assert found[0] == "WARNING tests.agent: with [redacted] and \\x1b[2J\ttab \\udc80"
    assert found[-1] == r"    RuntimeError: [redacted] \x07"
    credentials.forget_all()


def test_records_that_cannot_be_formatted(logs: RolloutLogs) -> None:
    """Their parts are written."""

    class Bad:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    log = logs.begin(job(), "T1")
    # As `logging` itself would print its own traceback for these, they go to the file alone.
    log.logger.debug("%d", "x")
    log.logger.debug("%s", Bad())
    log.end()
    assert "'%d' % ('x',) (TypeError" in entries(log)[0]
    assert "RuntimeError: no text" in entries(log)[1]


# --- Whose record it is


def test_rollouts_at_the_same_time(logs: RolloutLogs) -> None:
    """Tasks and threads: no record is in another rollout's file."""

    def in_a_thread(number: int) -> None:
        log = logs.begin(job("sync", number), f"S{number}")
        barrier.wait()
        other.warning("of %d", number)
        barrier.wait()
        log.end()
        assert entries(log) == [f"WARNING tests.agent: of {number}", "# ended"]

    async def in_a_task(number: int) -> None:
        log = logs.begin(job("async", number), f"A{number}")
        await asyncio.sleep(0)
        await asyncio.to_thread(other.warning, "of %d", number)
        await asyncio.gather(*(asyncio.sleep(0) for _ in range(3)))
        log.end()
        assert entries(log) == [f"WARNING tests.agent: of {number}", "# ended"]

    async def tasks() -> None:
        await asyncio.gather(*(in_a_task(number) for number in range(20)))

    barrier = threading.Barrier(8)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(in_a_thread, range(8)))
    asyncio.run(tasks())
    other.warning("of nobody")
    assert logs_module._open == {}


def test_threads_that_the_trajectory_is_carried_into(logs: RolloutLogs) -> None:
    """Threads have no context variables of their own; ``rt.instrument`` carries the trajectory, the inner ones too."""
    with rt.instrument(), rt.trajectory() as trajectory:
        log = logs.begin(job(), trajectory.id)
        thread = threading.Thread(target=other.warning, args=("in a thread",))
        thread.start()
        thread.join()
        with rt.trajectory("inner"):
            with ThreadPoolExecutor(1) as pool:
                pool.submit(other.warning, "in a pool").result()
        log.end()
    assert [line.partition(": ")[2] for line in entries(log)] == ["in a thread", "in a pool", ""]


def test_an_agent_that_was_left_behind(logs: RolloutLogs) -> None:
    """What it logs after the end of its attempt is in no file, and opens none."""
    log = logs.begin(job(), "T1")
    log.end()
    path_of(log).unlink()
    other.warning("late")
    log.logger.warning("late")
    log.end(ValueError("again"))
    assert not path_of(log).exists()


def test_an_attempt_that_is_made_again_in_a_later_run(logs: RolloutLogs) -> None:
    """The file of the first one stays, and is added to."""
    for trajectory in ("T1", "T2"):
        logs.begin(job(), trajectory).end()
    log = logs.begin(job(), "T3")
    assert path_of(log).read_text().count("# task t, sample 0, attempt 1") == 2
    log.end()


# --- What it does to the process


def test_logging_is_as_it_was() -> None:
    """After the last of several runs; a run without files changes nothing."""
    original = logging.Logger.callHandlers
    none, first, second = RolloutLogs(None), RolloutLogs("a"), RolloutLogs("b")
    none.install()
    assert logging.Logger.callHandlers is original
    first.install()
    first.install()
    second.install()
    first.uninstall()
    first.uninstall()
    assert logging.Logger.callHandlers is not original
    second.uninstall()
    none.uninstall()
    assert logging.Logger.callHandlers is original


def test_basic_config_works_in_an_agent(logs: RolloutLogs, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does nothing where the root has handlers: none of ours is there. Warnings are printed as without files."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    log = logs.begin(job(), "T1")
    printed: list[str] = []
    monkeypatch.setattr(logging, "lastResort", last := logging.Handler(logging.WARNING))
    monkeypatch.setattr(last, "emit", lambda record: printed.append(record.getMessage()))
    other.warning("nobody takes it")
    logging.basicConfig()
    assert printed == ["nobody takes it"]
    assert len(root.handlers) == 1
    log.end()


def test_loggers_are_not_kept(logs: RolloutLogs) -> None:
    """``logging`` keeps every logger that it makes, for ever; of these nothing is left, nor for the collector to do."""
    kept = set(logging.Logger.manager.loggerDict)
    gc.disable()
    try:
        for one in (RolloutLogs(None), logs):
            log = one.begin(job("a.b"), "T1")
            found = weakref.ref(log.logger)
            log.logger.getChild("tool").warning("hello")
            assert log.logger.name == "rollout_trace.rollout.a_b.0"
            log.end()
            del log
            assert found() is None
    finally:
        gc.enable()
    assert set(logging.Logger.manager.loggerDict) - kept <= {PARENT}


def test_without_files_a_logger_is_as_others(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """Its level is that of the root, its records go to the user's handlers."""
    log = RolloutLogs(None).begin(job(), "T1")
    assert not log.logger.isEnabledFor(logging.INFO)
    log.logger.info("no")
    log.logger.warning("yes")
    log.end(ValueError("no"))
    assert caplog.record_tuples == [("rollout_trace.rollout.t.0", logging.WARNING, "yes")]
    assert os.listdir(tmp_path) == []


def test_files_are_open_while_their_rollouts_run(logs: RolloutLogs) -> None:
    """And no longer."""
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    for number in range(200):
        log = logs.begin(job(index=number), f"T{number}")
        log.logger.warning("one")
        assert file_of(log)._file is not None
        log.end()
        assert file_of(log)._file is None
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_a_folder_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is said once; the agent goes on, and so do the other handlers."""
    (tmp_path / "file").write_text("")
    found = RolloutLogs(str(tmp_path / "file" / "logs"))
    found.install()
    try:
        for number in range(3):
            log = found.begin(job(index=number), f"T{number}")
            other.warning("hello")
            log.end(ValueError("no"))
    finally:
        found.uninstall()
    assert caplog.messages.count("hello") == 3
    assert sum("cannot be written" in message for message in caplog.messages) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_while_another_thread_logs(logs: RolloutLogs) -> None:
    """Its locks are free in the child, and what that logs is in the rollout's file."""
    log = logs.begin(job(), "T1")
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with file_of(log)._lock, logs_module._lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        log.logger.warning("from the child")
        os._exit(0)
    code = os.waitpid(child, 0)[1]
    done.set()
    thread.join()
    log.end()
    assert code == 0
    assert entries(log)[0].endswith(": from the child")


# --- Names


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ("gsm8k", "gsm8k"),
        ("task_1.a-b", "task_1.a-b"),
        ("gsm8k/17", "gsm8k_17-a13517a09f07"),
        ("..", "task-5ec1f7e700f3"),
        ("", "task-e3b0c44298fc"),
        ("ärger", "rger-"),
        ("MATH", "MATH-"),
        ("con.txt", "task-"),
        ("a.", "a-"),
        (".hidden", "hidden-"),
        ("x" * 300, "x" * 67 + "-"),
        ("\udc80\x00\n", "task-"),
        ("t-a13517a09f07", "t-a13517a09f07-"),
    ],
)
def test_names(task: str, name: str) -> None:
    """Of files and folders, for any id."""
    found = safe_name(task)
    assert found.startswith(name)
    assert found == safe_name(task)


def test_ids_that_are_alike_have_names_of_their_own() -> None:
    """On systems that do not tell capitals apart, too."""
    ids = ["a/b", "a_b", "a b", "a\\b", "A_b", "a_B", "a_b-" + "0" * 12, safe_name("a/b"), "x" * 300, "x" * 301]
    assert len({safe_name(one).lower() for one in ids}) == len(ids)


@given(st.text(st.characters(exclude_categories=[])), st.text(st.characters(exclude_categories=[])))
def test_names_are_names(one: str, another: str) -> None:
    """One part of a path, ASCII, short, and another one for each id."""
    name = safe_name(one)
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,79}", name)
    assert not name.endswith(".")
    assert one == another or name.lower() != safe_name(another).lower()
