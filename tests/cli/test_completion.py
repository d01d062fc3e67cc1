"""``rollout-trace completion`` and ``--schema``."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rollout_trace.file.records as schemas

from .command import command


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_options_values_and_files(tmp_path: Path) -> None:
    program = tmp_path / "rollout-trace"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -W error -m rollout_trace "$@"\n')
    program.chmod(0o755)
    script = """
        eval "$(rollout-trace completion bash)"
        compopt() { echo "compopt $*"; }
        try() {
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
            _rollout_trace_completion rollout-trace
            echo "${COMPREPLY[*]}"
        }
        try rollout-trace spl
        try rollout-trace split --over
        try rollout-trace split --by ""
        try rollout-trace filter True roll
        complete -p rollout-trace
    """
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": str(Path(schemas.__file__).parents[2])}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    assert " ".join(done.stdout.split()).startswith(
        "split --overwrite group task name status compopt -o default complete"
    )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_script_that_says_how_to_install_it(shell: str, tmp_path: Path) -> None:
    done = command(tmp_path, "completion", shell)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("# To install it, ")
    assert "_ROLLOUT_TRACE_COMPLETE" in done.out
    assert command(tmp_path, "completion", "tcsh").code == 2


def test_schema_is_the_published_one(tmp_path: Path) -> None:
    assert command(tmp_path, "--schema").out == schemas.PATH.read_text()
    assert command(tmp_path, "--schema", "--note").out == schemas.NOTE_PATH.read_text()
    line = command(tmp_path, "--schema", "--json")
    assert (line.json, len(line.out.splitlines())) == (json.loads(schemas.PATH.read_text()), 1)
    assert command(tmp_path, "--schema", "-o", "x.json").code == 0
    assert (tmp_path / "x.json").read_text() == schemas.PATH.read_text()
    assert command(tmp_path, "--schema", "-o", "x.json").code == 2
