"""What a model's commands can do to the machine that runs them: the sandbox and the tools of the coding agent."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox import Limits
from tests.amount import some
from tests.examples.coding_agent.example import EXAMPLE, environment
from workspace import ToolError, Workspace

FORKS = """
import os, time
for number in range(8):
    if os.fork() == 0:
        if number % 2:
            os.setsid()
        if number % 4 == 3 and os.fork():
            os._exit(0)
        with open(f"pid-{number}", "w") as file:
            file.write(str(os.getpid()))
        os.rename(f"pid-{number}", f"written-{number}")
        time.sleep(1000)
while sum(name.startswith("written") for name in os.listdir()) < 8:
    time.sleep(0.01)
"""
"""Leaves processes behind: in its group, in sessions of their own, and some whose parent has ended."""


@pytest.fixture
def workspace() -> Iterator[Workspace]:
    with Workspace("slugs", Limits(seconds=60.0, cpu_seconds=1, memory=1 << 29, file_size=1 << 20)) as made:
        yield made


def program(workspace: Workspace, text: str) -> str:
    """What the model reads of a program that it wrote and ran."""
    (workspace.folder / "program.py").write_text(text)
    return workspace.call("run", {"command": "python program.py"}, "call_1")


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_program_that_computes_for_ever_ends(workspace: Workspace) -> None:
    assert program(workspace, "while True: pass") == f"[exit code {-signal.SIGXCPU}]"


def test_a_program_that_waits_for_ever_ends(workspace: Workspace) -> None:
    workspace.limits = Limits(seconds=0.5)
    assert program(workspace, "import time; time.sleep(1000)") == "[killed after 0.5 s]"


@pytest.mark.parametrize("end", some(["", "while True: pass"], ""))
def test_no_process_is_left(workspace: Workspace, end: str) -> None:
    """Whether the program ends or is killed."""
    shown = program(workspace, FORKS + end)
    assert shown == (f"[exit code {-signal.SIGXCPU}]" if end else "[exit code 0]")
    pids = [int(path.read_text()) for path in workspace.folder.glob("written-*")]
    assert len(pids) == 8
    assert [pid for pid in pids if is_alive(pid)] == []


def test_no_process_is_left_where_this_one_is_killed(tmp_path: Path) -> None:
    """As by the kernel when memory is short: nothing of this process runs any more."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(60.0)
    inner = (
        "import os, socket, time\n"
        f"socket.create_connection({listener.getsockname()!r}).sendall(b'%d' % os.getpid())\n"
        "time.sleep(1000)"
    )
    outer = (
        f"import sys; sys.path.insert(0, {str(EXAMPLE)!r})\n"
        "import pathlib, sandbox\n"
        f"place = pathlib.Path({str(tmp_path)!r})\n"
        f"sandbox.run([sys.executable, '-c', {inner!r}], place, place, sandbox.Limits(seconds=1000.0))"
    )
    with listener, subprocess.Popen([sys.executable, "-c", outer], env=environment(tmp_path)) as process:
        connection, _ = listener.accept()
        with connection:
            pid = int(connection.recv(100))
        ended = os.pidfd_open(pid)
        process.kill()
    try:
        assert select.select([ended], [], [], 60.0)[0], "it is still there after a minute"
    finally:
        os.close(ended)


def test_output_without_end_is_cut(workspace: Workspace) -> None:
    shown = program(workspace, "import itertools\nfor number in itertools.count(): print('line', number)")
    assert len(shown) < 4200
    assert shown.startswith("line 0\nline 1\n")
    assert "1048576 bytes in all" in shown


def test_memory_has_an_end(workspace: Workspace) -> None:
    assert "MemoryError" in program(workspace, "bytearray(1 << 30)")


def test_a_file_has_a_largest_size(workspace: Workspace) -> None:
    shown = program(workspace, "open('large', 'wb').write(bytes(2 << 20))")
    assert "File too large" in shown
    assert (workspace.folder / "large").stat().st_size <= 1 << 20


def test_no_secret_is_in_the_environment(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "AWS_SECRET_ACCESS_KEY", "ROLLOUT_TRACE_OUTPUT"):
        monkeypatch.setenv(name, "secret-of-the-test")
    shown = program(workspace, "import os\nprint(sorted(os.environ))\nprint(os.environ)")
    names = "['HOME', 'LANG', 'PATH', 'PYTHONDONTWRITEBYTECODE', 'TMPDIR']"
    assert names in shown
    assert "secret-of-the-test" not in shown


@pytest.mark.parametrize("path", ["../../etc/passwd", "/etc/passwd", "tests/../../home", "link", "link/hosts"])
def test_paths_outside_are_refused(workspace: Workspace, path: str) -> None:
    program(workspace, "import os; os.symlink('/etc', 'link')")
    for tool, arguments in (("read_file", {}), ("edit_file", {"old": "", "new": "x"})):
        with pytest.raises(ToolError, match="is outside of the repository"):
            workspace.call(tool, {"path": path, **arguments}, "call_1")


def test_links_are_neither_listed_nor_taken_along(workspace: Workspace) -> None:
    before = workspace.call("list_files", {}, "call_1")
    program(workspace, "import os; os.symlink('/etc/passwd', 'link'); os.symlink('/etc', 'folder')")
    assert workspace.call("list_files", {}, "call_2").split() == ["program.py", *before.split()]


def test_links_in_a_circle_are_for_the_model_to_read(workspace: Workspace) -> None:
    program(workspace, "import os; os.symlink('one', 'two'); os.symlink('two', 'one')")
    with pytest.raises(ToolError, match=r"Symlink loop|there is no file one"):
        workspace.call("read_file", {"path": "one"}, "call_1")


def test_a_pipe_is_not_waited_for(workspace: Workspace) -> None:
    program(workspace, "import os; os.mkfifo('pipe')")
    with pytest.raises(ToolError, match="there is no file pipe"):
        workspace.call("read_file", {"path": "pipe"}, "call_1")


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("delete", "{}", "there is no tool 'delete'"),
        ("run", '{"command": "rm -rf ."}', "'rm' cannot be run here"),
        ("run", '{"command": "python -c \'"}', "the command cannot be read"),
        ("run", '{"command": ""}', "'' cannot be run here"),
        ("run", '{"command": 1}', "the arguments of run are texts"),
        ("run", "{}", "run takes the arguments command"),
        ("run", '["python"]', "run takes the arguments command"),
        ("run", '{"command": ', "the arguments are no JSON"),
        ("list_files", '{"path": "."}', r"list_files takes the arguments \(none\)"),
        ("read_file", '{"path": "missing.py"}', "there is no file missing.py"),
        ("read_file", '{"path": "tests"}', "there is no file tests"),
        ("read_file", '{"path": "a\\u0000b"}', "null"),
        ("edit_file", '{"path": "slugs.py", "old": "no such text", "new": ""}', "0 times"),
        ("edit_file", '{"path": "slugs.py", "old": "slug", "new": ""}', "3 times"),
        ("edit_file", '{"path": "slugs.py", "old": "", "new": ""}', "slugs.py exists"),
        ("edit_file", '{"path": "half.py", "old": "", "new": "\\ud800"}', "surrogates not allowed"),
        ("edit_file", '{"path": "slugs.py/half.py", "old": "", "new": ""}', "slugs.py"),
    ],
)
def test_mistakes_are_for_the_model_to_read(workspace: Workspace, tool: str, arguments: str, message: str) -> None:
    with pytest.raises(ToolError, match=message):
        workspace.call(tool, arguments, "call_1")


def test_a_file_is_made_and_changed(workspace: Workspace) -> None:
    workspace.call("edit_file", {"path": "new/made.py", "old": "", "new": "print('ä')\r\n"}, "call_1")
    workspace.call("edit_file", {"path": "new/made.py", "old": "'ä'", "new": "'ö'"}, "call_2")
    assert workspace.call("read_file", {"path": "new/made.py"}, "call_3") == "print('ö')\r\n"
    assert workspace.call("run", {"command": "python new/made.py"}, "call_4") == "ö\n[exit code 0]"


def test_two_at_once_share_nothing(workspace: Workspace) -> None:
    with Workspace("slugs") as other:
        workspace.call("edit_file", {"path": "slugs.py", "old": "import re", "new": "import os"}, "call_1")
        program(workspace, "open('made', 'w').close()")
        assert "import re" in other.call("read_file", {"path": "slugs.py"}, "call_1")
        assert "made" not in other.call("list_files", {}, "call_2")
        folders = (workspace.folder.parent, other.folder.parent)
    assert "import re" in (EXAMPLE / "repositories" / "slugs" / "slugs.py").read_text()
    assert [folder.exists() for folder in folders] == [True, False]


def test_the_folder_is_not_in_what_the_model_reads(workspace: Workspace) -> None:
    """Equal attempts have equal tokens, whatever their folders are called."""
    assert str(workspace.folder) not in program(workspace, "1 / 0")
