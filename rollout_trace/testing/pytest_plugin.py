"""The pytest plugin: a test's rollout, recorded; its model calls, replayed from a cassette or answered from a script.

Loaded in every pytest run of whoever has the package, so it imports next to nothing before a test uses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .rollout import RecordedRollout
    from .scripted import ScriptedServer

_MODES = ("replay", "record", "auto", "off")
_MARK = (
    "replay(*paths, ignore=(), normalize=None, order='recorded', timing=False, engine=None, cli=None): answer the "
    "test's model calls from a cassette, a file of rollouts that pytest --replay=record makes (cassettes/ beside the "
    "test file)."
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options."""
    group = parser.getgroup("rollout_trace", "recorded model calls (rollout_trace)")
    group.addoption(
        "--replay",
        choices=_MODES,
        default=None,
        help="tests marked replay: replay their cassettes (default), record them anew, record those that are missing "
        "(auto; in CI they fail), or call the real models (off)",
    )
    group.addoption("--rollout-dir", default=None, help="folder to write the rollouts of tests to, one file each")
    group.addoption(
        "--rollout-keep",
        choices=("failed", "all"),
        default=None,
        help="which tests' rollouts go there: those that failed (default), or all",
    )
    parser.addini("rollout_replay", "default of --replay", default="replay")
    parser.addini("rollout_dir", "default of --rollout-dir", default="")
    parser.addini("rollout_keep", "default of --rollout-keep", default="failed")
    parser.addini("rollout_engine", "the engine that servers are asked for token ids as, such as vllm", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Registers the mark."""
    config.addinivalue_line("markers", _MARK)
    for option, known in (("rollout_replay", _MODES), ("rollout_keep", ("failed", "all"))):
        value = config.getini(option)
        if value not in known:
            raise pytest.UsageError(f"{option} = {value!r} in the ini file: expected one of {', '.join(known)}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begins to replay, or to record, before any fixture of the test is set up."""
    # The one hook that every test pays for: the others are registered by the first test that needs them.
    if item.get_closest_marker("replay") is not None:
        _tests().observed(item)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Lists the cassettes that were recorded, by the workers of xdist too."""
    reports = [one for found in terminalreporter.stats.values() for one in found if hasattr(one, "rollout_trace")]
    if reports:
        from .pytest_tests import summarize

        summarize(terminalreporter, reports)


def pytest_assertrepr_compare(config: pytest.Config, op: str, left: object, right: object) -> list[str] | None:
    """Shows how trajectories in a plain ``assert`` differ, and a short conversation."""
    from .compare_repr import compare_repr

    return compare_repr(op, left, right)


@pytest.fixture
def rollout(request: pytest.FixtureRequest) -> RecordedRollout:
    """What the test's agent sent to its models and what they answered, to assert on; see docs/test-agents.md."""
    rollout: RecordedRollout = _tests().observed(request.node).rollout
    return rollout


@pytest.fixture
def scripted_llm(request: pytest.FixtureRequest) -> ScriptedServer:
    """A model server that answers from the test's script: ``scripted_llm.script = [...]``.

    Every model call of the test goes to it, and the environment variables that SDKs read have its address.
    """
    server: ScriptedServer = _tests().scripted(request.node)
    return server


def _tests() -> Any:
    """The module of the tests that are recorded, which imports much."""
    if not hasattr(pytest, "StashKey"):
        what = f"replay and the fixtures of rollout_trace need pytest 7.0 or newer; this is {pytest.__version__}."
        pytest.fail(f"{what} Tests that use neither run as ever.", pytrace=False)
    from . import pytest_tests

    return pytest_tests
