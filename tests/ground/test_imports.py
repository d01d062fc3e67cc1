"""What `import rollout_trace` costs, what it offers, and what it works without. Each in an interpreter of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

NOT_BEFORE_USE = ("anthropic", "httpx", "httpx2", "numpy", "openai", "rich", "zstandard")

OFFERED = {
    "JSONLWriter",
    "bind",
    "current",
    "orphans",
    "propagate",
    "read",
    "recording",
    "reward",
    "trajectory",
    "unwrap",
    "wrap_openai",
}


def python(program: str, folder: Path) -> str:
    """Run a program in a fresh interpreter, with the warnings as errors, and give its output."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def without(*modules: str) -> str:
    """The first lines of a program for which these modules are not installed."""
    return f"import sys\nsys.modules.update(dict.fromkeys({modules!r}))\n"


def test_import_loads_no_sdk_no_framework_and_no_array_library(tmp_path: Path) -> None:
    program = f"import rollout_trace, sys; print([name for name in {NOT_BEFORE_USE!r} if name in sys.modules])"
    assert python(program, tmp_path) == "[]\n"


def test_every_public_name_resolves_and_is_listed(tmp_path: Path) -> None:
    program = """
import rollout_trace
for name in rollout_trace.__all__:
    assert getattr(rollout_trace, name) is not None, name
assert len(rollout_trace.__all__) == len(set(rollout_trace.__all__)), "a name stands twice in __all__"
missing = set(rollout_trace.__all__) - set(dir(rollout_trace))
assert not missing, missing
print(*rollout_trace.__all__)
"""
    assert set(python(program, tmp_path).split()) >= OFFERED


IMPORT_EVERY_MODULE = """
import importlib, pkgutil
for module in pkgutil.walk_packages(rollout_trace.__path__, "rollout_trace."):
    importlib.import_module(module.name)
"""

RESOLVE_EVERY_NAME = """
from types import ModuleType
found = {name: getattr(rollout_trace, name) for name in rollout_trace.__all__}
modules = [name for name, value in found.items() if isinstance(value, ModuleType)]
assert not modules, modules
"""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(IMPORT_EVERY_MODULE + RESOLVE_EVERY_NAME, id="modules-first"),
        pytest.param(RESOLVE_EVERY_NAME + IMPORT_EVERY_MODULE + RESOLVE_EVERY_NAME, id="names-first"),
    ],
)
def test_no_module_takes_the_place_of_a_public_name(program: str, tmp_path: Path) -> None:
    """Importing a module sets its name on the package, and would hide a public name that is spelled the same."""
    assert python(f"import rollout_trace\n{program}\nprint('same')", tmp_path) == "same\n"


def test_an_unknown_name_is_an_attribute_error(tmp_path: Path) -> None:
    program = """
import rollout_trace
try:
    rollout_trace.no_such_name
except AttributeError as error:
    print(error)
"""
    assert python(program, tmp_path) == "module 'rollout_trace' has no attribute 'no_such_name'\n"


def test_without_any_extra_a_trajectory_is_recorded_written_read_and_sequenced(tmp_path: Path) -> None:
    program = without("anthropic", "httpx", "httpx2", "openai", "rich", "zstandard") + (
        """
import rollout_trace as rt
with rt.recording("rollouts.jsonl"):
    with rt.trajectory(name="solver", task="sum/1") as trajectory:
        trajectory.reward = 1.0
(back,) = rt.read("rollouts.jsonl")
print(back.name, back.reward, back.status, back.sequences())
"""
    )
    assert python(program, tmp_path) == "solver 1.0 completed []\n"


def test_without_openai_wrapping_says_what_is_wrong_in_a_sentence(tmp_path: Path) -> None:
    """The error is about the argument or the missing package, not a traceback from inside an import."""
    program = without("openai") + (
        """
import rollout_trace
try:
    rollout_trace.wrap_openai(object())
except (ImportError, TypeError) as error:
    print(error)
"""
    )
    assert "openai" in python(program, tmp_path).lower()
