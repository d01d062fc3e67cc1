"""How far a run is: its figures, the bar, the lines and the callback."""

from __future__ import annotations

import io
import logging
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rollout_trace.collection.reporters as shown
from rollout_trace.collection.progress import Progress, Reporter
from rollout_trace.collection.progress_lines import Lines, arrange, compact, duration, kinds, money
from rollout_trace.collection.reporters import Callback, reporter_for
from rollout_trace.data.model import Cost
from tests.collection.running import SUMMARY, Run, outcome


def plain(progress: Progress, width: int) -> list[str]:
    """The lines of a bar, without their colours."""
    return [
        "  ".join([*(["=" * columns] if columns else []), *(piece.text for piece in pieces)])
        for columns, pieces in arrange(progress, width)
    ]


# --- Figures


def test_the_time_left_is_that_of_the_rate_lately() -> None:
    """Slow rollouts at the beginning do not count any more."""
    run = Run(planned=1000)
    for _ in range(10):
        run.end(seconds=60)
        run.progress()
    for _ in range(90):
        run.end(seconds=1)
        run.progress()
    found = run.progress()
    assert found.done == 100
    assert found.elapsed == 690
    assert found.eta == pytest.approx(900, rel=0.05)


def test_what_was_in_the_output_before_is_done_and_took_no_time() -> None:
    """The rate is that of this run alone."""
    run = Run(planned=1000, earlier=900)
    run.end(10, seconds=10)
    found = run.progress()
    assert (found.done, found.earlier, found.ended) == (910, 900, 10)
    assert found.eta == pytest.approx(90)


def test_nothing_is_said_of_the_time_left_before_anything_has_ended() -> None:
    """Missing is None."""
    run = Run(planned=10, earlier=5)
    run.now += 60
    found = run.progress(running=4)
    assert (found.eta, found.tokens_per_second, found.mean_reward, found.cost) == (None, None, None, None)


def test_the_time_left_grows_while_nothing_ends() -> None:
    """A server that stands still is seen."""
    run = Run(planned=100)
    run.end(10, seconds=10)
    before = run.progress().eta
    run.now += 300
    after = run.progress().eta
    assert before is not None
    assert after is not None
    assert after > 10 * before


def test_rollouts_that_end_in_waves_have_a_steady_rate() -> None:
    """64 that begin together end together, minutes apart."""
    run = Run(planned=6400, concurrency=64)
    found = []
    for wave in range(10):
        for _ in range(600):
            run.now += 1
            run.progress(64)
        run.end(64)
        if wave >= 2:
            found.append(run.progress().eta)
    left = [6400 - 64 * (wave + 1) for wave in range(2, 10)]
    assert found == [pytest.approx(rollouts / 64 * 600, rel=0.02) for rollouts in left]


def test_tokens_in_a_second() -> None:
    """Over the last 30 seconds."""
    run = Run(planned=1000)
    for _ in range(60):
        run.end(tokens=100, seconds=1)
        run.progress()
    for _ in range(60):
        run.end(tokens=500, seconds=1)
        run.progress()
    assert run.progress().tokens_per_second == pytest.approx(500)


def test_no_time_is_left_when_all_is_done() -> None:
    """0, and not None."""
    run = Run(planned=3)
    run.end(3, seconds=1)
    assert run.progress().eta == 0


@pytest.mark.parametrize("state", ["stopping", "ended"])
def test_no_time_is_left_of_a_run_that_stops(state: Any) -> None:
    """When it would have been done is not known any more."""
    run = Run(planned=100)
    run.end(10, seconds=10)
    run.monitor.state = state
    assert run.progress().eta is None


def test_a_long_run_takes_little_memory() -> None:
    """A window of days has no more samples than one of minutes, but for a few."""
    run = Run(planned=200_000, concurrency=50_000)
    for _ in range(100_000):
        run.end(seconds=0.25)
        run.progress()
    assert len(run.monitor._rate._samples) < 5_000


@given(st.lists(st.tuples(st.floats(0, 50), st.integers(0, 5)), max_size=60), st.integers(1, 8))
def test_a_rate_is_never_that_of_no_time(steps: list[tuple[float, int]], concurrency: int) -> None:
    """Whatever ends when: between that of the slowest second and that of the whole, never negative, never infinite."""
    run = Run(planned=10_000, concurrency=concurrency)
    for seconds, number in steps:
        run.end(number, seconds=seconds)
        found = run.progress()
        assert found.eta is None or 0 <= found.eta < float("inf")
        assert found.done == run.tally.ended


def test_the_latest_failure() -> None:
    """On one line, without control characters; attempts that are repeated are not failures."""
    run = Run()
    run.monitor.add(outcome("failed", "BadRequestError", "red \x1b[31m\nline 2", task="gsm8k/\x07"))
    run.monitor.add(outcome("failed", "RateLimitError", will_retry=True))
    assert run.progress().latest_failure == r"gsm8k/\x07[2] failed: BadRequestError: red \x1b[31m\nline 2"


def test_failures_of_very_many_kinds_are_counted() -> None:
    """The most frequent by their names, the others together."""
    run = Run()
    run.tally.errors.update({f"Error{number}": number for number in range(1, 31)})
    failures = run.progress().failures
    assert len(failures) == 21
    assert sum(failures.values()) == sum(run.tally.errors.values())


# --- Text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (3599, "59:59"), (3600, "1:00:00"), (90_061, "1d 1:01:01")]
)
def test_durations(seconds: float, text: str) -> None:
    """As clocks show them."""
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (0.04, "0.0"),
        (7, "7"),
        (9.96, "10"),
        (999.4, "999"),
        (999.9, "1.0k"),
        (12_345, "12k"),
        (3.4e9, "3.4G"),
    ],
)
def test_compact_numbers(number: float, text: str) -> None:
    """Three digits at most."""
    assert compact(number) == text


@pytest.mark.parametrize(
    ("cost", "text"),
    [
        (Cost(amount=1234.5), "$1,234.50"),
        (Cost(amount=0.00123), "$0.0012"),
        (Cost(amount=0), "$0.00"),
        (Cost(amount=2, currency="EUR\x1b"), r"2.00 EUR\x1b"),
    ],
)
def test_money(cost: Cost, text: str) -> None:
    """Small amounts keep two digits."""
    assert money(cost) == text


def test_kinds_of_failures() -> None:
    """The most frequent first, few of them; their names may be anything."""
    assert kinds({"A": 1, "B\x1b[2J": 3}) == r"3 B\x1b[2J, 1 A"
    assert kinds({"A": 5, "B": 4, "C": 3, "D": 2, "E": 1, "F": 1}) == "5 A, 4 B, 3 C, 2 D, 2 other"


def busy() -> Run:
    """A run of which there is much to say."""
    run = Run(planned=2000, earlier=120, retried=31, left_behind=2, reward=0.4123, cost=Cost(amount=12.3))
    run.end(500, tokens=400_000, seconds=100)
    run.end(7, error="RateLimitError")
    run.end(3, error="RolloutTimeout")
    return run


def test_all_of_it_on_a_wide_terminal() -> None:
    """One line."""
    assert plain(busy().progress(64), 200) == [
        f"{'=' * 40}  630/2,000  31%  64 running  4:29 left  10 failed (7 RateLimitError, 3 RolloutTimeout)"
        "  2 left behind  31 retried  reward 0.412  4.0k tok/s  $12.30"
    ]


def test_two_lines_on_a_narrow_terminal() -> None:
    """The least important is left out."""
    assert plain(busy().progress(64), 80) == [
        f"{'=' * 38}  630/2,000  31%  64 running  4:29 left",
        "10 failed  2 left behind  reward 0.412  4.0k tok/s  $12.30",
    ]
    assert plain(busy().progress(64), 40) == [
        f"{'=' * 14}  630/2,000  64 running",
        "10 failed  reward 0.412",
    ]


@given(st.integers(1, 250))
def test_it_fits_every_terminal(width: int) -> None:
    """With room for ``^C`` behind it; how many are done is always there."""
    lines = plain(busy().progress(64), width)
    assert "630/2,000" in lines[0]
    assert all(len(line) <= max(9, width - 3) for line in lines)
    assert len(lines) <= 2


def test_a_run_of_nothing_can_be_shown() -> None:
    """No tasks: no division by zero."""
    assert plain(Run(planned=0).progress(), 80)[0].endswith("0/0  0 running  0:00 left")


# --- Lines


def lines_of(run: Run) -> tuple[Lines, Any]:
    """Lines that have begun."""
    lines = Lines()
    lines.begin(run.progress())
    return lines, run


def test_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """One at the beginning, one in 10 seconds, one at each tenth, one at the end; no returns, no colours."""
    run = Run(planned=100, earlier=10)
    lines, _ = lines_of(run)
    for _ in range(40):
        run.end(seconds=0.5)
        lines.update(run.progress(8))
    run.end(error="RateLimitError", seconds=1)
    run.now += 100
    lines.update(run.progress(8))
    run.monitor.state = "ended"
    lines.end(run.progress(), SUMMARY)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "collect: 100 rollouts, to runs/x.jsonl",
        "collect: 20/100, 20%, 8 running, 0:40 left",
        "collect: 30/100, 30%, 8 running, 0:35 left",
        "collect: 40/100, 40%, 8 running, 0:30 left",
        "collect: 50/100, 50%, 8 running, 0:25 left",
        "collect: t[2] failed: RateLimitError: no",
        "collect: 51/100, 51%, 8 running, 41:27 left, 1 failed (1 RateLimitError)",
        "collect: ended: 51/100, 51%, in 2:01, 1 failed (1 RateLimitError)",
        "the summary",
        r"in two lines \x1b[2J",
    ]


def test_lines_that_say_the_same_are_rare(capsys: pytest.CaptureFixture[str]) -> None:
    """A log of hours in which nothing ends is a line a minute, not six."""
    run = Run(planned=100)
    lines, _ = lines_of(run)
    for _ in range(2400):
        run.now += 0.25
        lines.update(run.progress(8))
    assert len(capsys.readouterr().err.splitlines()) == 1 + 1 + 9


def test_the_first_failure_of_each_kind_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """At once, and once."""
    run = Run(planned=1000)
    lines, _ = lines_of(run)
    for error in ("A", "A", "B", "A", "B"):
        run.end(error=error)
        lines.update(run.progress())
    assert capsys.readouterr().err.splitlines()[1:] == ["collect: t[2] failed: A: no", "collect: t[2] failed: B: no"]


def test_a_note_of_a_task_with_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    """They are escaped."""
    Lines().note("task \x1b[2J\n2")
    assert capsys.readouterr().err == "collect: task \\x1b[2J\\n2\n"


def test_a_process_without_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    """pythonw, daemons: nothing is shown, and nothing fails."""
    monkeypatch.setattr(sys, "stderr", None)
    reporter = reporter_for(None)
    reporter.begin(Run().progress())
    reporter.note("hello")


# --- Callbacks, and the choice


def test_a_callback_gets_each_progress() -> None:
    """The first and the last included."""
    seen: list[Progress] = []
    run, reporter = Run(), reporter_for(seen.append)
    reporter.begin(run.progress())
    run.end()
    reporter.update(run.progress())
    run.monitor.state = "ended"
    reporter.end(run.progress(), SUMMARY)
    assert [(one.ended, one.state) for one in seen] == [(0, "running"), (1, "running"), (1, "ended")]


def test_a_callback_that_raises_is_not_called_again(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged once; the run goes on."""
    calls = []

    def broken(progress: Progress) -> None:
        calls.append(progress)
        raise KeyError("no \x1b")

    reporter = reporter_for(broken)
    for _ in range(3):
        reporter.update(Run().progress())
    assert len(calls) == 1
    assert len(caplog.records) == 1
    assert r"KeyError: 'no \x1b'" in caplog.text


def test_wrong_callbacks() -> None:
    """A sentence each."""

    async def callback(progress: Progress) -> None:
        """Would never be awaited."""

    for wrong in ("yes", 3, callback):
        with pytest.raises(TypeError, match=r"progress is .*; give None, True, False, or a function that is not async"):
            reporter_for(wrong)  # type: ignore[arg-type]


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        """It does."""
        return True


def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """stderr is a terminal from now on; not by a fixture, after which pytest puts its own there."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nowhere else."""
    on_a_terminal(monkeypatch)
    assert type(reporter_for(None)).__name__ == type(reporter_for(True)).__name__ == "Bar"
    assert type(reporter_for(False)) is Reporter
    assert isinstance(reporter_for(print), Callback)


@pytest.mark.parametrize(("name", "value"), [("TERM", "dumb"), ("CI", "true")])
def test_lines_where_a_bar_would_be_garbage(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """Terminals that cannot move the cursor, and logs of CI that look like one."""
    on_a_terminal(monkeypatch)
    monkeypatch.setenv(name, value)
    assert isinstance(reporter_for(None), Lines)


def test_lines_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is optional."""
    on_a_terminal(monkeypatch)
    monkeypatch.setattr(shown, "find_spec", lambda name: None)
    assert isinstance(reporter_for(None), Lines)


def test_lines_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """And in one that is closed, nothing."""
    closed = io.StringIO()
    monkeypatch.setattr(sys, "stderr", closed)
    assert isinstance(reporter_for(None), Lines)
    closed.close()
    assert isinstance(reporter_for(None), Lines)
    assert logging.getLogger("rollout_trace").handlers == []
