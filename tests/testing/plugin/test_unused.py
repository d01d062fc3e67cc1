"""The plugin in runs that do not use it: it costs next to nothing, and stands in nobody's way."""

from __future__ import annotations

import pytest

from .project import Project, plain

_LISTS = """
import sys

def pytest_unconfigure():
    print("LOADED", *sorted(sys.modules))
"""


@pytest.mark.more
def test_a_run_without_it_imports_nothing_more(pytester: pytest.Pytester) -> None:
    # Not `-X importtime`: it does not see what pytest loads with its assertions rewritten, and that is this package.
    pytester.makeconftest(_LISTS)
    pytester.makepyfile("def test_a(): pass")
    without, loaded = (_loaded(pytester, *options) for options in (("-p", "no:rollout_trace"), ()))
    assert "rollout_trace.testing.pytest_plugin" not in without
    assert loaded - without == {
        *("rollout_trace", "rollout_trace._lazy", "rollout_trace._version"),
        *("rollout_trace.testing", "rollout_trace.testing.pytest_plugin"),
    }


def _loaded(pytester: pytest.Pytester, *options: str) -> set[str]:
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", *options)
    result.assert_outcomes(passed=1)
    (line,) = [line for line in result.stdout.lines if line.startswith("LOADED ")]
    return set(line.split()[1:])


def test_a_pytest_that_is_too_old_is_named(project: Project) -> None:
    project.tests("""
@pytest.mark.replay
def test_one():
    pass

def test_other():
    pass
""")
    project.monkeypatch.delattr(pytest, "StashKey")
    result = project.run()
    result.assert_outcomes(errors=1, passed=1)
    assert f"need pytest 7.0 or newer; this is {pytest.__version__}" in plain(result.stdout.str())
