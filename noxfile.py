"""The project's commands: `make NAME` runs the session NAME, `make list` lists them.

A session that makes an environment, in .venvs, is required by those that run something in it. What goes into it is
pinned in requirements/NAME.txt, or by an integration in its tests/requirements.txt; the first line of the .in file
beside it says what the environment takes. Behind `--` stand arguments of pytest.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nox

sys.path.insert(0, str(Path(__file__).parent / "tests" / "shared"))
import waiting

nox.needs_version = ">=2026.10"
nox.options.default_venv_backend = "uv"
nox.options.envdir = ".venvs"
nox.options.reuse_venv = "yes"
nox.options.allow_parallel = True
# Else `make PYTHON=python3.12 test` would be tested by what another Python has made.
os.environ["NOX_ENABLE_STALENESS_CHECK"] = "1"

ROOT = Path(__file__).parent
ENVIRONMENTS = Path(".venvs")
LOCKS = {path.stem: path for path in sorted(Path("requirements").glob("*.txt")) if path.stem != "tools"}
INTEGRATIONS = [path.parent.name for path in sorted(Path("integrations").glob("*/pyproject.toml"))]
for integration in INTEGRATIONS:
    LOCKS[integration] = Path("integrations", integration, "tests", "requirements.txt")
    oldest = LOCKS[integration].with_stem("requirements-oldest")
    if oldest.exists():
        LOCKS[f"{integration}-oldest"] = oldest


def beginning(*prefixes: str) -> list[str]:
    """The environments whose names begin so."""
    return [name for name in LOCKS if name.startswith(prefixes)]


CLIENTS = beginning("openai-", "anthropic-", "google-", "http-")
FRAMEWORKS = [name for name in LOCKS if name.removesuffix("-oldest") in INTEGRATIONS]
CONSUMERS = beginning("consumers-")
AGENTS = beginning("agents-")
TRAINERS = beginning("trainers-")
PEERS = beginning("peers-")
OTHERS = ("collect-ray", "page", "release", "mixed")

PACKAGES = {
    **{name: [Path("integrations", name.removesuffix("-oldest"))] for name in FRAMEWORKS},
    "mixed": [Path("integrations", f"rollout-trace-{name}") for name in ("langchain", "pydantic-ai", "openai-agents")],
}
"""What is installed beside the core."""
# Harbor, whose validator of ATIF is the one to ask, needs 3.12, and so do Agent-lightning, the SDK of OpenHands and
# OpenPipe's ART. All peers have the same Python: their times are compared.
PYTHONS = {
    "3.12": {"consumers-atif", "trainers-python312", "trainers-skyrl", "agents-openhands", *PEERS},
    "3.13": {"trainers-python313", "agents-fastagent"},
}
# NeMo-Gym asks for this one, and runs with any 3.13: uv, which else refuses, is told that it has it.
SAID = {"trainers-python313": ("--python-version", "3.13.14")}
# PyTorch comes in many builds, one for each kind of machine: whichever the index has, first and without a hash.
TORCH = {"consumers-torch", "consumers-tinker", "trainers-skyrl", "trainers-torch"}


@functools.cache
def found(version: str) -> str | None:
    """A Python of this version: on the path, where pyenv's names run the chosen one alone, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    for name in (f"python{version}", *map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}")))):
        if shutil.which(name) and not subprocess.run((name, "-c", ""), capture_output=True).returncode:
            return name
    return None


def python_of(name: str) -> str | None:
    """The Python of an environment; None for the one that runs this."""
    return next((found(version) for version, names in PYTHONS.items() if name in names), None)


def folder_of(name: str) -> Path:
    """The folder of an environment, as nox names it."""
    return ENVIRONMENTS / re.sub(r"[^\w-]", "-", name)


def interpreter(name: str) -> str:
    """The Python in an environment."""
    return str(folder_of(name) / "bin" / "python")


def is_made(name: str) -> bool:
    """Whether an environment has been made, perhaps of older releases."""
    return any(folder_of(name).glob("lib/*/site-packages/rollout_trace*"))


def megabytes(name: str) -> int:
    """What an environment takes on disk; 0 if nobody has said."""
    found = re.match(r"# (\d+) MB", LOCKS[name].with_suffix(".in").read_text())
    return int(found[1]) if found else 0


def environment(name: str) -> None:
    """Adds the session that makes an environment, or leaves it as it is where nothing has changed."""

    def make(session: nox.Session) -> None:
        if not is_made(name):
            session.log(f"makes {folder_of(name)}, {megabytes(name)} MB")
        with waiting.told(name, "installing"):
            if name in TORCH:
                session.install("torch==2.13.0", silent=True)
            # Every package is named: one may hold a release older than another asks for, on purpose.
            said = SAID.get(name, ()) if python_of(name) else ()
            session.install("--no-deps", "--require-hashes", "-r", str(LOCKS[name]), *said, silent=True)
            if name not in PEERS or name == "peers-ours":
                packages = [Path(), *PACKAGES.get(name, ())]
                editable = [word for package in packages for word in ("-e", f"./{package}")]
                session.install("--no-deps", "--no-build-isolation", *editable, silent=True)

    make.__doc__ = f"An environment: {LOCKS[name]}."
    nox.session(name=name, python=python_of(name), default=False)(make)


CORES = os.cpu_count() or 1
# More than there are cores: they wait for servers, for timeouts and for other processes.
AT_ONCE = str(CORES + 2)
"""Sets of tests."""

NEEDS: dict[str, tuple[str, ...]] = {}
"""The environments of each task."""


def task(name: str, *needs: str) -> Callable[[Callable[[nox.Session], None]], object]:
    """Adds a session that runs in environments that other sessions make."""
    NEEDS[name] = needs
    added: Callable[[Callable[[nox.Session], None]], object]
    added = nox.session(name=name, venv_backend="none", requires=needs, default=False)
    return added


def run(session: nox.Session, name: str, *arguments: str, **variables: str) -> None:
    """Runs the Python of an environment."""
    with waiting.told(session.name, Path(arguments[arguments[0] == "-m"]).stem) as told:
        session.run(interpreter(name), *arguments, env={**variables, **told}, external=True)


def pytest(session: nox.Session, name: str, *arguments: str, slowest: int = 3, **variables: str) -> None:
    """Runs tests in an environment."""
    program = ("tests/shared/progress.py", "-q", f"--durations={slowest}")
    # Several run at once: none waits for its threads on a core that another uses.
    run(session, name, *program, *arguments, *session.posargs, OMP_NUM_THREADS="1", **variables)


def together(session: nox.Session, *names: str, at_once: str, **more: str) -> None:
    """Runs tasks side by side: all of them, whatever fails."""
    new = {need for name in names for need in NEEDS[name] if not is_made(need)}
    if new:
        free = shutil.disk_usage(ROOT).free // 1_000_000
        session.log(f"makes {len(new)} environments in .venvs: {sum(map(megabytes, new)):,} MB; {free:,} MB are free")
    with waiting.reported() as variables:
        command = (sys.executable, "-m", "nox", "--parallel", at_once, "--sessions", *names)
        session.run(*command, env={**variables, **more}, external=True)


# In the environment of the quickstart.


@task("demo", "quickstart")
def demo(session: nox.Session) -> None:
    """The quickstart against a server in the same process."""
    run(session, "quickstart", "examples/quickstart.py", "--overwrite")
    binaries = folder_of("quickstart") / "bin"
    print(f"""
Record a program of yours, unmodified; or run an agent over many tasks:
  {binaries}/rollout-trace run -o mine.jsonl --engine vllm agent.py
  {binaries}/rollout-trace collect agent.py:solve \\
      --tasks tasks.jsonl -o runs/mine.jsonl
Read the documentation: docs/index.md, or on a site that `make docs` serves.""")


# In the environment of development.


@task("test", "dev")
def test(session: nox.Session) -> None:
    """The tests that need no other environment, on all cores. make test ROOM=wire FILE=tests/... K=word FAST=1"""
    # Of a room, what each worker does for itself is a good part of the work: it imports, finds tests, reads recordings.
    pytest(session, "dev", *workers(CORES + 1 if session.posargs else CORES + 2), slowest=10)


def workers(count: int) -> tuple[str, ...]:
    """pytest's arguments for so many processes."""
    return ("-n", str(count), "--dist", "worksteal")


@task("properties", "dev")
def properties(session: nox.Session) -> None:
    """Property tests with all their examples, tables with all their cases, of which `make test-all` tries a part."""
    pytest(session, "dev", *workers(CORES + 2), "-m", "hypothesis or more", ROLLOUT_TRACE_AMOUNT="all")


@task("kills", "dev")
def kills(session: nox.Session) -> None:
    """Hundreds of processes killed at any moment, and recovered; thousands of rollouts with faults."""
    tests = ("tests/record/kills", "tests/file/shards/test_kills.py")
    rollouts = (f"tests/collection/test_{name}.py" for name in ("kills", "many", "rollouts"))
    pytest(session, "dev", *tests, *rollouts, ROLLOUT_TRACE_AMOUNT="all")


@task("test-engines", "dev")
def test_engines(session: nox.Session) -> None:
    """Against live engines, those that are installed: tests/live_engines/README.md."""
    pytest(session, "dev", "tests/live_engines", ROLLOUT_TRACE_ENGINES="1")


@task("fuzz", "dev")
def fuzz(session: nox.Session) -> None:
    """A million damaged exchanges through the decoders."""
    run(session, "dev", "-m", "tests.fuzz.run", *session.posargs)


@task("docs", "dev")
def docs(session: nox.Session) -> None:
    """Serves the documentation at http://127.0.0.1:8000/, built again when a file changes. make docs PORT=8001"""
    address = f"127.0.0.1:{os.environ.get('PORT', '8000')}"
    mkdocs(session, "serve", "--strict", "--dev-addr", address)


def mkdocs(session: nox.Session, *arguments: str) -> None:
    # Else mkdocs-material prints at each build that its support ends in May 2027.
    run(session, "dev", "-m", "mkdocs", *arguments, NO_MKDOCS_2_WARNING="1")


@task("check-core", "dev")
def check_core(session: nox.Session) -> None:
    """ruff, mypy --strict, the imports between rooms, the documentation's build."""
    run(session, "dev", "-m", "ruff", "check")
    run(session, "dev", "-m", "ruff", "format", "--check")
    run(session, "dev", "-m", "mypy")
    run(session, "dev", "-m", "tests.house")
    mkdocs(session, "build", "--strict", "--quiet")


@task("bench-core", "dev")
def bench_core(session: nox.Session) -> None:
    """What recording costs, against the budgets."""
    run(session, "dev", "benchmarks/run.py", *session.posargs)


# In environments of their own.


def tests(name: str, *arguments: str) -> None:
    """Adds the task ``test-NAME``: tests in the environment NAME."""

    def test_one(session: nox.Session) -> None:
        # With older releases of SDKs and frameworks as much is tried as in `make test`.
        is_older = name in CLIENTS or name.endswith("-oldest")
        pytest(session, name, *arguments, ROLLOUT_TRACE_AMOUNT="few" if is_older else "more")
        if name == "consumers-torch":
            # Of smolagents, what needs PyTorch.
            folder = Path("integrations", "rollout-trace-smolagents")
            program = folder / "tests" / "test_transformers.py"
            pytest(session, name, "-c", "pyproject.toml", str(program), PYTHONPATH=str(folder))

    test_one.__doc__ = f"Tests in an environment of their own: {arguments[-1]}."
    task(f"test-{name}", name)(test_one)


SDKS = {
    "openai": ("tests/clients/openai", "tests/wire/engines"),
    "anthropic": ("tests/clients/anthropic",),
    "google": ("tests/clients/google",),
    "http": ("tests/clients/http_libraries",),
}
for name in CLIENTS:
    tests(name, *SDKS[name.partition("-")[0]])
for name in FRAMEWORKS:
    tests(name, "-c", "pyproject.toml", f"integrations/{name.removesuffix('-oldest')}/tests")
for name in OTHERS:
    tests(name, f"tests/{name.replace('-', '_')}")
for name in (*CONSUMERS, *TRAINERS, *AGENTS):
    tests(name, f"tests/{name.replace('-', '/', 1)}")


@task("test-install", "dev")
def test_install(session: nox.Session) -> None:
    """The `pip install` lines of the documentation, in new environments."""
    pytest(session, "dev", "tests/install")


@task("test-clis", "dev", "agents-litellm")
def test_clis(session: nox.Session) -> None:
    """Claude Code and Codex from npm, run against our servers; their transcripts are what was asked. 1.4 GB."""
    pytest(session, "dev", "tests/clis", "-m", "not by_hand")
    # Where the translator of their protocols is.
    pytest(session, "agents-litellm", "tests/clis/test_ids.py")


@task("test-clis-more", "dev")
def test_clis_more(session: nox.Session) -> None:
    """OpenCode, Gemini CLI, Qwen Code, Kimi Code, Copilot and pi from npm, with a Node, the same. 1.3 GB."""
    pytest(session, "dev", "tests/clis", "-m", "by_hand")


@task("test-more", "dev")
def test_more(session: nox.Session) -> None:
    """What `make test` leaves out in its environment: more examples of property tests, more kills, more cases."""
    # The longest task of `make test-all`: beside others, but at the end alone on all cores.
    pytest(session, "dev", *workers(2), "-m", "hypothesis or amount or more", ROLLOUT_TRACE_AMOUNT="more")


@task("dist", "release")
def dist(session: nox.Session) -> None:
    """The distributions in dist/, checked and ready to upload, which is left to you: CONTRIBUTING.md."""
    run(session, "release", "-m", "tests.release.distributions", "dist")


# smolagents has no types: its decorators and its classes can be anything.
UNTYPED = {"rollout-trace-smolagents": ("--allow-untyped-decorators", "--allow-subclassing-any")}


def of_integration(name: str) -> None:
    """Adds an integration's tasks: its types, its tests' and its example's, with its framework's; its benchmark."""

    @task(f"check-{name}", "dev", name)
    def check_one(session: nox.Session) -> None:
        """The types of an integration, beside its framework."""
        where = ("--cache-dir", f".mypy_cache/{name}", "--python-executable", interpreter(name))
        types = ("--follow-imports", "silent", *UNTYPED.get(name, ()), f"integrations/{name}")
        path = f"integrations/{name}:tests/shared:benchmarks/shared"
        run(session, "dev", "-m", "mypy", *where, *types, MYPYPATH=path)

    @task(f"bench-{name}", name)
    def bench_one(session: nox.Session) -> None:
        """What an integration costs."""
        run(session, name, f"integrations/{name}/benchmark.py", PYTHONPATH="benchmarks/shared")


for name in INTEGRATIONS:
    of_integration(name)


@task("bench-peers", "dev")
def bench_peers(session: nox.Session) -> None:
    """The same calls recorded by others, half an hour. make bench-peers PEERS_ARGUMENTS="--rounds 2 --only ours"

    Writes benchmarks/peers/results.json and docs/comparison.md.
    """
    # A peer whose environment cannot be made is listed as such.
    command = (sys.executable, "-m", "nox", "--sessions", *PEERS)
    session.run(*command, success_codes=range(256), external=True)
    run(session, "dev", "-m", "benchmarks.peers.run", *session.posargs)


# Several at once.


def group(name: str, text: str, *names: str, **variables: str) -> None:
    """Adds a session that runs tasks side by side."""
    at_once = AT_ONCE if name.startswith("test") else "auto"

    def all_of_them(session: nox.Session) -> None:
        together(session, *names, at_once=at_once, **variables)

    all_of_them.__doc__ = text
    nox.session(name=name, venv_backend="none", default=False)(all_of_them)


group("check", "ruff, mypy, imports, documentation.", "check-core", *(f"check-{name}" for name in INTEGRATIONS))
group("bench", "What recording costs.", "bench-core", *(f"bench-{name}" for name in INTEGRATIONS))
group("test-consumers", "What trainers make of our exports.", *(f"test-{name}" for name in CONSUMERS))
group("test-trainers", "The same, of trainers that take long to install.", *(f"test-{name}" for name in TRAINERS))
group("test-agents", "Agents and frameworks, unmodified: all cases.", *(f"test-{name}" for name in AGENTS))
# Minutes each, and so the first: none is left over at the end.
LONG = ("more", "page", "consumers-torch", "install", *beginning("openai-"), "agents-litellm", "release")
group(
    "test-all",
    "All tests that `make test` leaves out, save live engines, trainers and most of the agents.",
    *dict.fromkeys(f"test-{name}" for name in (*LONG, "agents-sdks", *FRAMEWORKS, *OTHERS, *CONSUMERS, *CLIENTS)),
    ROLLOUT_TRACE_AGENTS="part",
)

for name in LOCKS:
    environment(name)
