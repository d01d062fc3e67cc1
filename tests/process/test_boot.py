"""The boot file: any Python may run it, and it waits for all that ``rt.instrument`` watches."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from rollout_trace.process import instrument
from rollout_trace.process.boot import sitecustomize
from rollout_trace.process.patches import Part

from .running import environment

FILE = Path(sitecustomize.__file__)


def test_an_old_python_can_read_it() -> None:
    ast.parse(FILE.read_text(), feature_version=(3, 6))


def test_it_imports_the_standard_library_alone() -> None:
    names = {
        alias.name
        for node in ast.walk(ast.parse(FILE.read_text()))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    assert names == {"os", "sys", "atexit", "sitecustomize", "Any"}


def test_it_waits_for_all_that_is_instrumented() -> None:
    parts = [one for one in vars(instrument).values() if isinstance(one, Part)]
    names = {name for part in parts for name in part._modules}
    assert {"openai._base_client", "httpx"} <= names
    # These make no calls by themselves: a library that does is imported too.
    others = {*sys.stdlib_module_names, "joblib", "loky", "litellm"}
    names = {name for name in names if name.partition(".")[0] not in others}
    assert not {name for name in names if sitecustomize.WATCHED.isdisjoint(_prefixes(name))}


def _prefixes(name: str) -> set[str]:
    parts = name.split(".")
    return {".".join(parts[:end]) for end in range(1, len(parts) + 1)}


SEEN = """
import sys
before = set(sys.modules)
{program}
print(sorted(name for name in set(sys.modules) if name.partition(".")[0] == "rollout_trace")[:1])
print(sum(type(one).__name__ == "Waiter" for one in sys.meta_path))
"""


@pytest.mark.parametrize(
    ("program", "is_started"),
    [("import json, email, asyncio", False), ("import httpx", True), ("import rollout_trace", True)],
)
def test_the_recorder_is_imported_with_the_first_library(program: str, is_started: bool, tmp_path: Path) -> None:
    variables = environment(ROLLOUT_TRACE_OUTPUT=str(tmp_path / "x.jsonl"))
    variables["PYTHONPATH"] = f"{FILE.parent}:{variables['PYTHONPATH']}"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SEEN.format(program=program)],
        env=variables, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == ("['rollout_trace']\n0\n" if is_started else "[]\n1\n")
    assert done.stderr == ""


def test_without_the_variable_it_does_nothing(tmp_path: Path) -> None:
    variables = environment()
    variables["PYTHONPATH"] = f"{FILE.parent}:{variables['PYTHONPATH']}"
    program = SEEN.format(program="import httpx; print(sys.path)")
    done = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=True)
    path, modules, waiting = done.stdout.splitlines()
    assert (modules, waiting) == ("[]", "0")
    assert str(FILE.parent) not in path
