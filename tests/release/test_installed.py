"""The wheels of all distributions in one new environment, far from the checkout: a user's, without the frameworks.

Each framework with its integration is installed in tests/install/. It takes a package registry.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.release.conftest import NAMES, Built
from tests.release.distributions import ROOT, run

INTEGRATIONS = NAMES[1:]
RECORD = """
import rollout_trace as rt
from openai import OpenAI
from rollout_trace.testing import ScriptedServer

with ScriptedServer(["Four."]) as server:
    client = rt.wrap_openai(OpenAI(base_url=server.base_url, api_key="-"), engine="vllm")
    with rt.recording("rollouts.jsonl"), rt.trajectory("solver", task="sums/1") as trajectory:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "2 + 2?"}])
        trajectory.reward = 1.0
"""
TESTED = """
def test_a_question(scripted_llm, rollout):
    scripted_llm.script = ["Four."]
    from openai import OpenAI
    OpenAI().chat.completions.create(model="m", messages=[{"role": "user", "content": "2 + 2?"}])
    assert len(rollout.steps) == 1
"""
TYPED = """
import rollout_trace as rt
from rollout_trace_strands._about import ABOUT

for trajectory in rt.read("rollouts.jsonl"):
    reveal_type(trajectory)
    for sequence in trajectory.sequences():
        reveal_type(sequence)
reveal_type(ABOUT)
rt.recording(5)
"""


class User:
    """Who has installed the wheels, and works in a folder of their own."""

    def __init__(self, folder: Path, wheels: list[Path]) -> None:
        self.folder = folder / "work"
        self.folder.mkdir()
        self.bin = folder / "environment" / "bin"
        run(sys.executable, "-m", "venv", "--without-pip", str(self.bin.parent))
        core, *others = wheels
        self.pip("install", f"{core}[openai,cli]", "hypothesis", "pytest")
        self.checked = self.pip("check").stdout
        self.pip("install", "--no-deps", *map(str, others))

    def pip(self, what: str, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs uv's pip on the environment."""
        # bootstrap.py puts it on the path.
        command = ("uv", "pip", what, "--python", str(self.bin / "python"), *words)
        return subprocess.run(command, capture_output=True, text=True, check=check, timeout=300)

    def run(self, program: str, *words: str) -> str:
        """What a program of the environment prints."""
        return run(str(self.bin / program), *words, cwd=self.folder)

    def python(self, code: str) -> str:
        """What Python prints for some code."""
        return self.run("python", "-W", "error", "-c", code)


@pytest.fixture(scope="module")
def user(built: Built, tmp_path_factory: pytest.TempPathFactory) -> User:
    made = User(tmp_path_factory.mktemp("user"), [built.wheel(name) for name in NAMES])
    made.python(RECORD)
    return made


def test_only_the_frameworks_are_missing(user: User) -> None:
    found = user.pip("check", check=False)
    assert found.returncode == 1
    lines = [line for line in found.stderr.splitlines() if line.startswith("The package")]
    assert [line for line in lines if not line.endswith("but it's not installed")] == []
    assert sorted(line.split("`")[1] for line in lines) == INTEGRATIONS


def test_every_public_name_is_there_and_comes_from_the_wheel(user: User) -> None:
    files = user.python(
        "import rollout_trace, sys\n"
        "from importlib import import_module\n"
        "rooms = 'clients collection data export file importing integration process record testing train wire'\n"
        "for name in ('', *(f'.{room}' for room in rooms.split())):\n"
        "    module = import_module(f'rollout_trace{name}')\n"
        "    for public in module.__all__: getattr(module, public)\n"
        "print(*(m.__file__ for n, m in sys.modules.items() if n.startswith('rollout_trace')), sep='\\n')"
    ).splitlines()
    assert len(files) > 50
    assert [file for file in files if not Path(file).is_relative_to(user.bin.parent)] == []


def test_the_integrations_are_found_with_their_versions(user: User) -> None:
    listed = json.loads(
        user.python(
            "import json, rollout_trace as rt\n"
            "from importlib import import_module\n"
            "print(json.dumps([(one.distribution, one.version, one.framework_version,\n"
            "    import_module(one.distribution.replace('-', '_')).__version__) for one in rt.integrations()]))"
        )
    )
    # One may have several frameworks: Pydantic AI and pydantic_evals.
    assert sorted({name for name, *_ in listed}) == INTEGRATIONS
    for _, version, framework, stated in listed:
        assert version == stated
        assert framework is None


@pytest.mark.parametrize("name", INTEGRATIONS)
def test_without_its_framework_an_integration_says_what_to_install(name: str, user: User) -> None:
    package = name.replace("-", "_")
    said = user.python(
        f"import {package}\n"
        f"for name in {package}.__all__:\n"
        "    try:\n"
        f"        getattr({package}, name)\n"
        "    except ImportError as error:\n"
        "        print(error)"
    )
    assert f"pip install . ./integrations/{name}" in said


def test_the_version_is_that_of_the_wheel(user: User, built: Built) -> None:
    version = built.wheel("rollout-trace").name.split("-")[1]
    for program, *words in (("rollout-trace",), ("python", "-m", "rollout_trace")):
        assert user.run(program, *words, "--version") == f"rollout-trace {version}\n"


def test_the_command_shows_what_was_recorded(user: User) -> None:
    assert "Four." in user.run("rollout-trace", "show", "rollouts.jsonl")
    assert json.loads(user.run("rollout-trace", "validate", "rollouts.jsonl", "--json"))["problems"] == 0
    schema = ROOT / "rollout_trace" / "schema" / "rollout-trace-1.json"
    assert json.loads(user.run("rollout-trace", "schema")) == json.loads(schema.read_text())


def test_the_page_is_whole(user: User) -> None:
    user.run("rollout-trace", "view", "rollouts.jsonl", "--html", "page.html")
    page = (user.folder / "page.html").read_text()
    folder = ROOT / "rollout_trace" / "view" / "page"
    scripts = [(folder / name).read_text() for name in (folder / "order.txt").read_text().split()]
    assert scripts
    assert [script[:200] for script in scripts if script.strip() not in page] == []


def test_a_program_that_was_not_written_for_it_is_recorded(user: User) -> None:
    """`rollout-trace run` starts the program with a folder of the wheel on its path."""
    program = RECORD.replace("rt.wrap_openai(", "(").replace(', engine="vllm")', ")").replace("rt.recording", "open")
    program = program.replace('open("rollouts.jsonl"), rt.trajectory("solver", task="sums/1") as trajectory', "server")
    (user.folder / "agent.py").write_text(program.replace("        trajectory.reward = 1.0\n", ""))
    user.run("rollout-trace", "run", "-o", "unmodified.jsonl", "agent.py")
    assert "Four." in user.run("rollout-trace", "show", "unmodified.jsonl")


def test_pytest_has_the_plugin(user: User) -> None:
    (user.folder / "test_agent.py").write_text(TESTED)
    assert "1 passed" in user.run("pytest", "-q", "-W", "error", "test_agent.py")


def test_a_type_checker_sees_the_types(user: User) -> None:
    (user.folder / "typed.py").write_text(TYPED)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--python-executable"]
    done = subprocess.run(
        [*command, user.bin / "python", "typed.py"], capture_output=True, text=True, check=False, cwd=user.folder
    )
    *seen, wrong = (line.partition(": ")[2] for line in done.stdout.splitlines())
    assert seen == [
        f'note: Revealed type is "rollout_trace.{name}"'
        for name in ("data.trajectory.Trajectory", "train.sequence.Sequence", "integration.installed.About")
    ]
    assert wrong.startswith('error: Argument 1 to "recording" has incompatible type "int"')
