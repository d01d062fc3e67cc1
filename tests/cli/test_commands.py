"""The command itself: what it lists, what it refuses, and what it needs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import rollout_trace as rt
from rollout_trace.cli.app import COMMANDS

from .command import command


def test_help_lists_every_command(tmp_path: Path) -> None:
    done = command(tmp_path, "--help")
    assert (done.code, done.err) == (0, "")
    listed = dict(re.findall(r"^  ([a-z]+) +(\S.*)$", done.out.partition("Commands:")[2], re.M))
    assert listed == COMMANDS
    assert "0 fine, 1 something was found, 2 it could not be done" in done.out


@pytest.mark.parametrize("name", sorted({*COMMANDS, "--schema", "--versions"} - {"fork", "query", "run", "serve"}))
def test_each_command_has_help_json_and_exit_codes(name: str, tmp_path: Path) -> None:
    done = command(tmp_path, name, "-h")
    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= 80
    # What it prints is for a shell; with the other two it finds nothing.
    if name != "completion":
        assert "--json" in done.out
    if name not in ("completion", "--schema", "--versions"):
        assert "Exit code 1: " in " ".join(done.out.split())


def test_serve_has_help_and_exit_codes(tmp_path: Path) -> None:
    done = command(tmp_path, "serve", "--help")
    assert done.code == 0
    assert done.out.startswith("usage: rollout-trace serve [options] [SOURCE]")
    assert "Exit code 1: " in done.out
    assert max(map(len, done.out.splitlines())) <= 80


@pytest.mark.parametrize("name", ["fork", "run"])
def test_what_runs_a_program_has_help_and_its_exit_codes(name: str, tmp_path: Path) -> None:
    done = command(tmp_path, name, "--help")
    assert done.code == 0
    assert "Exit code: that of the program; 2 where it could not be started." in " ".join(done.out.split())
    assert max(map(len, done.out.splitlines())) <= 80


def test_the_version(tmp_path: Path) -> None:
    done = command(tmp_path, "--version")
    assert (done.code, done.out) == (0, f"rollout-trace {rt.__version__}\n")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["no-such"], "Error: No such command 'no-such'."),
        (["annotate"], "Error: Missing argument 'FILE'."),
        (["merge", "a.jsonl"], "Error: Missing option '-o' / '--output'."),
        (["merge", "a.jsonl", "-o", "b.jsonl"], "Error: there is no file a.jsonl."),
        (
            ["merge", ".", "-o", "b.jsonl"],
            "Error: there is no file of trajectories in .: none ends with .jsonl, .jsonl.gz, .jsonl.zst.",
        ),
        (["annotate", "\x1b2J.jsonl", "a", "--reward", "1"], "Error: there is no file \\x1b2J.jsonl."),
        ([], "Usage: rollout-trace [OPTIONS] COMMAND [ARGS]..."),
        (["lss"], "Error: No such command 'lss'. Did you mean ls?"),
        (["validat"], "Error: No such command 'validat'. Did you mean validate?"),
        (["\x1b[2J"], "Error: No such command '\\x1b[2J'. --help lists"),
        (["completion"], "  bash"),
    ],
)
def test_wrong_use_is_told_with_code_2(args: list[str], said: str, tmp_path: Path) -> None:
    done = command(tmp_path, *args)
    assert done.code == 2
    assert done.out == ""
    assert said in done.err
    assert "Traceback" not in done.err
    assert "\x1b" not in done.err


def test_without_click_it_says_what_to_install(tmp_path: Path) -> None:
    done = command(tmp_path, "--help", without="click")
    assert (done.code, done.out) == (2, "")
    assert done.err == "rollout-trace needs the package click. Install it in a checkout with: pip install '.[cli]'\n"


def test_it_is_also_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "rollout_trace", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"rollout-trace {rt.__version__}\n")


def test_help_imports_no_command_nor_what_commands_need(tmp_path: Path) -> None:
    program = """
import sys
from rollout_trace.cli import main
main(["--help"])
print([name for name in sys.modules if name in ("numpy", "msgspec", "orjson", "rich")
       or name.startswith(("rollout_trace.file", "rollout_trace.cli.annotate"))], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"


def test_output_that_nobody_reads_is_no_error(tmp_path: Path) -> None:
    with rt.JSONLWriter(tmp_path / "a.jsonl") as out:
        out.write(rt.Trajectory(id="a"))
    program = "import os, sys; os.close(0); from rollout_trace.cli import main; sys.exit(main())"
    with subprocess.Popen(
        [sys.executable, "-c", program, "annotate", "a.jsonl", "a", "--reward", "1"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()
    assert next(rt.read(tmp_path / "a.jsonl")).reward == 1
