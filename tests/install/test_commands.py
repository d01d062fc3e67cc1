"""Every `pip install` line that the project prints or documents works in a checkout: each is run in a new environment.

It takes a package registry: `make test` runs it beside the core tests, not among them. The lines of BY_PIP are run by
pip itself, the others by uv, which takes the same arguments and a tenth of the time. By ROLLOUT_TRACE_PIP=1 pip
runs all.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollout_trace.integration.installed import framework_missing

ROOT = Path(__file__).parent.parent.parent
INTEGRATIONS = sorted(path.name for path in (ROOT / "integrations").iterdir() if (path / "pyproject.toml").is_file())
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("integrations/*/README.md")])
SOURCES = sorted([*ROOT.glob("rollout_trace/**/*.py"), *ROOT.glob("examples/*.py")])
# Gigabytes of PyTorch: the programs that need them run in the environments of tests/consumers.
TRAINERS = {"trl"}

# As in the documentation: of the core, and of a distribution beside it.
BY_PIP = {"'.[openai]'", ". ./integrations/rollout-trace-smolagents"}
PIP = (sys.executable, "-m", "pip")

_COMMAND = re.compile(r"pip install (?P<rest>[^`\n]+)")
_IN_MESSAGE = re.compile(r"pip install (?P<rest>(?:'[^']*'|[\w./\[\]{}=<>-]+)(?: (?:'[^']*'|[\w./\[\]{}=<>-]+))*)")


def in_pages() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        name = page.relative_to(ROOT).as_posix()
        for found in _COMMAND.finditer(page.read_text()):
            # README's first line has it in a comment.
            command = re.sub(r" in a checkout$", "", found["rest"].partition(" # ")[0].strip())
            if command not in TRAINERS:
                yield name, command


def in_sources() -> Iterator[tuple[str, str]]:
    for source in SOURCES:
        for found in _IN_MESSAGE.finditer(source.read_text()):
            if "{" not in found["rest"]:
                yield source.relative_to(ROOT).as_posix(), re.sub(r"(?<=\w)\.$", "", found["rest"])
    for name in INTEGRATIONS:
        message = str(framework_missing(name, "the framework", ImportError("no")))
        yield name, message.partition("pip install ")[2]
    for package in ("brotli", "zstandard"):
        yield "rollout_trace/testing/_delivery.py", package


def commands() -> dict[str, list[str]]:
    """Each command once, quoted as a shell needs it, with the places where it stands."""
    found: dict[str, list[str]] = {}
    for place, command in [*in_pages(), *in_sources()]:
        found.setdefault(shlex.join(shlex.split(command)), []).append(place)
    return found


def imports_of(pages: list[str]) -> str:
    """The imports of the first example of each page that has the command: they have to work after it."""
    lines: list[str] = []
    for page in pages:
        if page.endswith("README.md") or page in ("docs/index.md", "docs/langchain.md"):
            block = (ROOT / page).read_text().partition("```python\n")[2].partition("```")[0]
            lines += [line for line in block.splitlines() if line.startswith(("import ", "from "))]
    return "\n".join(dict.fromkeys(lines))


def test_there_are_commands_for_the_core_and_for_each_integration() -> None:
    found = commands()
    assert set(found) >= BY_PIP
    for name in INTEGRATIONS:
        assert any(f"./integrations/{name}" in shlex.split(command) for command in found), name
        assert any(place == f"integrations/{name}/README.md" for places in found.values() for place in places), name
    assert not any("rollout-trace" in word for c in found for word in shlex.split(c) if not word.startswith("./"))


@pytest.mark.parametrize("command", sorted(commands()))
def test_the_command_works_in_a_fresh_environment(command: str, tmp_path: Path) -> None:
    fresh = tmp_path / "fresh"
    run(sys.executable, "-m", "venv", "--without-pip", str(fresh))
    python = fresh / "bin" / "python"
    install(str(python), command)
    places = commands()[command]
    # Elsewhere than in the checkout, whose folders would be imported instead.
    run(str(python), "-c", imports_of(places), cwd=tmp_path)
    for name in INTEGRATIONS:
        if f"./integrations/{name}" in shlex.split(command):
            check = (
                "import rollout_trace as rt\n"
                f"mine = [one for one in rt.integrations() if one.distribution == {name!r}]\n"
                "installed = [one.is_tested for one in mine if one.framework_version is not None]\n"
                "assert installed and all(installed), mine\n"
            )
            run(str(python), "-c", check, cwd=tmp_path)


def install(python: str, command: str) -> None:
    """Installs what stands behind ``pip install``, and checks that all fits together."""
    # bootstrap.py puts it on the path, with the settings that pip has here.
    uv = None if command in BY_PIP or os.environ.get("ROLLOUT_TRACE_PIP") else shutil.which("uv")
    if uv is None:
        # Not compiled: a third of the time, and hardly any module is imported.
        quiet = ("--quiet", "--disable-pip-version-check", "--no-input", "--no-compile")
        run(*PIP, "--python", python, "install", *quiet, *shlex.split(command), cwd=ROOT)
        run(*PIP, "--python", python, "check", "--disable-pip-version-check")
        return
    run(uv, "pip", "install", "--quiet", "--python", python, *shlex.split(command), cwd=ROOT)
    run(uv, "pip", "check", "--python", python)


def run(*command: str, cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}{done.stderr}"
