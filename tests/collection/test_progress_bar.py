"""The bar: on a real terminal, with what is printed and logged above it."""

from __future__ import annotations

import io
import signal
from pathlib import Path

import pytest

pytest.importorskip("rich")
pytest.importorskip("pty", reason="this system has no terminals of this kind")

from rich.console import Console

from rollout_trace.collection.progress_bar import Bar
from rollout_trace.collection.terminal import LONGEST, Above
from tests.collection.running import SUMMARY, Run
from tests.collection.screen import Screen, on_terminal

RUN = """
import logging, os, signal, sys, threading
handler = logging.StreamHandler()  # It has the stream from before the run.
logging.getLogger().addHandler(handler)
before = sys.stderr, sys.stdout
from rollout_trace.collection.reporters import reporter_for
from tests.collection.running import SUMMARY, Run, outcome
from rollout_trace.data.model import Cost
run = Run(planned=100, earlier=10, reward=0.5, cost=Cost(amount=1))
reporter = reporter_for(None)

def end():
    run.monitor.state = "ended"
    reporter.end(run.progress(), SUMMARY)
    assert (sys.stderr, sys.stdout) == before
    assert "write" not in sys.stderr.__dict__ and "write" not in sys.stdout.__dict__

reporter.begin(run.progress())
"""

PRINTS = """
reporter.note("10 of 100 rollouts are in the output already")
for number in range(80):
    run.end(tokens=1000, seconds=1, error="RateLimitError" if number % 40 == 9 else None)
    reporter.update(run.progress(8))
    reporter._live.refresh()
    if number == 10:
        print("printed: [red]no markup[/red] :smile:")
        print("to stderr\\nin two lines", file=sys.stderr)
    if number == 20:
        print("begun", end="", flush=True)
    if number == 22:
        print(", ended")
    if number == 30:
        logging.getLogger("agent").warning("logged")
    if 40 <= number < 50:
        print(f"\\r{number} on a bar of its own", end="")
    if number == 50:
        print("\\rdone")
    if number == 60:
        thread = threading.Thread(target=print, args=("from a thread",))
        thread.start()
        thread.join()
    if number == 70:
        print("x" * 150)
end()
print("after")
"""


@pytest.mark.parametrize(
    ("width", "bar"),
    [
        (
            200,
            ["━" * 36 + "─" * 4 + "  90/100  90%  in 1:20  2 failed (2 RateLimitError)  reward 0.5  1.0k tok/s  $1.00"],
        ),
        (
            60,
            [
                "━" * 31 + "─" * 4 + "  90/100  90%  in 1:20",
                "2 failed  reward 0.5  1.0k tok/s  $1.00",
            ],
        ),
        (24, ["━" * 11 + "─" * 2 + "  90/100", "2 failed  reward 0.5"]),
    ],
)
def test_all_that_is_printed_is_above_the_bar(width: int, bar: list[str]) -> None:
    """Each line whole, in its order, and one bar at the end."""
    code, screen = on_terminal(RUN + PRINTS, width=width)
    printed = [
        "collect: 10 of 100 rollouts are in the output already",
        "collect: t[2] failed: RateLimitError: no",
        "printed: [red]no markup[/red] :smile:",
        "to stderr",
        "in two lines",
        "begun, ended",
        "logged",
        "done",
        "from a thread",
        "x" * 150,
    ]
    wrapped = [line[at : at + width].rstrip() for line in printed for at in range(0, len(line), width)]
    summary = ["the summary", r"in two lines \x1b[2J"]
    assert code == 0, screen.lines
    assert screen.lines == [*wrapped, *bar, *summary, "after"]
    assert screen.has_cursor
    assert screen.has_colour


def test_no_colour_where_none_is_wanted() -> None:
    """NO_COLOR."""
    code, screen = on_terminal(RUN + PRINTS, width=80, environment={"NO_COLOR": "1"})
    assert code == 0, screen.lines
    assert not screen.has_colour


def test_a_terminal_without_unicode() -> None:
    """Its bar is of characters that it has."""
    environment = {"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    code, screen = on_terminal(RUN + "run.end(40, seconds=10)\nend()", width=60, environment=environment)
    assert code == 0, screen.lines
    assert screen.lines[0].startswith("########--------  50/100")


def test_stdout_that_is_a_file_gets_what_is_printed(tmp_path: Path) -> None:
    """As without a bar: ``python agent.py > answers.txt``."""
    with open(tmp_path / "out", "w") as out:
        code, screen = on_terminal(RUN + "print('an answer')\nend()", width=80, stdout=out.fileno())
    assert code == 0, screen.lines
    assert (tmp_path / "out").read_text() == "an answer\n"
    assert not any("answer" in line for line in screen.lines)


INTERRUPTED = """
print("ready")
signal.sigwait([signal.SIGINT])
run.monitor.state = "stopping"
reporter.note("interrupted")
end()
"""
BLOCKED = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n"


@pytest.mark.parametrize("width", [40, 80])
def test_ctrl_c_leaves_a_clean_terminal(width: int) -> None:
    """The terminal's own ``^C`` is behind the bar, and drawn over."""
    code, screen = on_terminal(
        BLOCKED + RUN + INTERRUPTED, width=width, react=lambda seen: b"\x03" if "ready" in seen else None
    )
    assert code == 0, screen.lines
    assert screen.lines[:2] == ["ready", "collect: interrupted"]
    assert len([line for line in screen.lines if "10/100" in line]) == 1
    assert not any("^C" in line for line in screen.lines)
    assert screen.has_cursor


def test_a_killed_process_leaves_the_cursor() -> None:
    """It has no time to bring it back."""
    code, screen = on_terminal(RUN + "os.kill(os.getpid(), signal.SIGKILL)", width=80)
    assert code == -signal.SIGKILL
    assert screen.has_cursor


FORKS = """
print("held", end="")
child = os.fork()
if child == 0:
    print("from the child", flush=True)
    os._exit(0 if "write" not in sys.stdout.__dict__ else 1)
assert os.waitpid(child, 0)[1] == 0
print(" back")
end()
"""


def test_a_forked_process_has_no_bar() -> None:
    """Its streams are as they were, and nothing of the parent's is printed twice."""
    code, screen = on_terminal("import warnings; warnings.simplefilter('ignore')\n" + RUN + FORKS, width=200)
    assert code == 0, screen.lines
    assert sum("from the child" in line for line in screen.lines) == 1
    assert screen.lines.count("held back") == 1


WORKERS = """
import subprocess
from rollout_trace.collection.terminal import streams_of_workers
PROGRAM = "import sys; print('printed', sys.stdout.isatty()); print('logged é', file=sys.stderr)"
PROGRAM += "; print('a part', end='')"
given = streams_of_workers()
workers = [subprocess.Popen([sys.executable, "-c", PROGRAM], **given) for _ in range(2)]
assert [worker.wait() for worker in workers] == [0, 0]
end()
assert streams_of_workers() == {}
assert len(os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ()) < 12
"""


def test_what_workers_print_is_above_the_bar() -> None:
    """Processes that make rollouts have a terminal, too; all that they printed is there at the end."""
    code, screen = on_terminal(RUN + WORKERS, width=80)
    assert code == 0, screen.lines
    *printed, bar, _, _ = screen.lines
    assert "10/100" in bar
    text = "".join(printed)
    assert [text.count(part) for part in ("printed", "True", "logged é", "a part")] == [2, 2, 2, 2]
    assert "━" not in text


def test_stdout_of_workers_that_is_a_file(tmp_path: Path) -> None:
    """As that of this process."""
    with open(tmp_path / "out", "w") as out:
        code, screen = on_terminal(RUN + WORKERS, width=80, stdout=out.fileno())
    assert code == 0, screen.lines
    assert (tmp_path / "out").read_text().count("False") == 2
    assert " ".join(screen.lines).count("logged é") == 2
    assert not any("printed" in line for line in screen.lines)


def test_a_bar_on_a_console() -> None:
    """What is drawn: one bar, whatever the number of updates."""
    file = io.StringIO()
    console = Console(file=file, width=100, force_terminal=True, force_interactive=True, _environ={"TERM": "xterm"})
    run, bar = Run(planned=20), Bar(console, is_drawn=False)
    bar.begin(run.progress())
    for _ in range(20):
        run.end(seconds=30)
        bar.update(run.progress(4))
        bar._live.refresh()
    bar.end(run.progress(), SUMMARY)
    screen = Screen(100)
    screen.feed(file.getvalue().replace("\n", "\r\n"))
    assert screen.lines == ["━" * 40 + "  20/20  100%  0 running  0:00 left", "the summary", r"in two lines \x1b[2J"]


# --- What takes the place of `write`


def above() -> tuple[Above, io.TextIOWrapper, list[str]]:
    """A stream whose ``write`` is replaced, and what is passed on."""
    stream, passed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), list[str]()
    one = Above(stream, passed.append)
    assert one.start()
    return one, stream, passed


def test_a_line_is_held_until_it_is_whole() -> None:
    """And what is left at the end is written."""
    one, stream, passed = above()
    assert stream.write("a") == 1
    print("b\nc\nd", end="", file=stream)
    assert passed == ["ab\nc"]
    one.stop()
    assert stream.write("e") == 1
    stream.seek(0)
    assert stream.read() == "de"


def test_a_bar_of_another_program_takes_no_memory() -> None:
    """It returns to the begin of the line and never ends it."""
    one, stream, passed = above()
    for number in range(1000):
        stream.write(f"\r{number}")
    assert one._held._text == "999"
    for _ in range(100):
        stream.write("x" * 1000)
    assert len(one._held._text) <= LONGEST
    assert len(passed) == 1
    one.stop()


def test_text_that_is_none_raises_as_it_does() -> None:
    """The stream's own error."""
    one, stream, _ = above()
    with pytest.raises(TypeError, match="must be str"):
        stream.write(b"bytes")  # type: ignore[arg-type]
    one.stop()


def test_a_stream_that_another_tool_has_patched_since() -> None:
    """Its patch stays, and reaches the stream."""
    one, stream, passed = above()
    ours = stream.write
    seen: list[str] = []

    def theirs(text: str) -> int:
        seen.append(text)
        return ours(text)

    stream.__dict__["write"] = theirs
    one.stop()
    stream.write("hello\n")
    stream.seek(0)
    assert (seen, passed, stream.read()) == (["hello\n"], [], "hello\n")


def test_a_stream_that_cannot_be_patched() -> None:
    """It stays as it is."""

    class Stream:
        __slots__ = ()

        def write(self, text: str) -> int:
            """As streams have it."""
            return len(text)

    assert not Above(Stream(), print).start()  # type: ignore[arg-type]
