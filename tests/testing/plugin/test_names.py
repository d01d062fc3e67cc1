"""Names of tests: in commands, in cassettes, and as files."""

from __future__ import annotations

import pytest

import rollout_trace as rt

from .project import Project, exchanges_of

MODELS = """
@pytest.mark.replay("all.jsonl")
@pytest.mark.parametrize("name", ["one/same", "two/same"])
def test_model(name):
    solve("hello", model=name)
"""
FAILING = """
@pytest.mark.replay
def test_one(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    solve("hello")
    assert False
"""


def test_parameters_with_slashes_are_different_tests(project: Project) -> None:
    project.tests(MODELS)
    project.record().assert_outcomes(passed=2)
    project.replay().assert_outcomes(passed=2)
    assert len(exchanges_of(project.cassette("all.jsonl"))) == 2


def test_tests_of_the_same_name_keep_their_own_rollouts(project: Project) -> None:
    for folder in ("a", "b"):
        project.pytester.mkpydir(folder)
        project.tests(FAILING, f"{folder}/test_x")
    project.tests(MODELS.replace("all.jsonl", "ids.jsonl") + "    assert False\n")
    project.monkeypatch.setenv("MODEL_URL", project.model.base_url)
    result = project.run("--replay=off", "--rollout-dir=out")
    result.assert_outcomes(failed=4)
    found = sorted(path.name for path in (project.pytester.path / "out").iterdir())
    assert found[:2] == ["a-test_x-test_one.jsonl", "b-test_x-test_one.jsonl"]
    assert len(found) == 4
    assert all(len(list(rt.read(project.pytester.path / "out" / name))) == 1 for name in found)
    # As it is typed where pytest was started, wherever the test went.
    result.stdout.fnmatch_lines(["rollout-trace show out/a-test_x-test_one.jsonl"])


def test_commands_are_for_the_folder_that_pytest_was_started_in(project: Project) -> None:
    folder = project.pytester.mkdir("sub")
    project.tests("@pytest.mark.replay\ndef test_one():\n    solve('hello')\n", "sub/test_x")
    project.monkeypatch.syspath_prepend(project.pytester.path)
    project.monkeypatch.chdir(folder)
    result = project.run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["To record it: pytest --replay=record test_x.py::test_one"])
    result.stdout.no_fnmatch_line("*During handling*")


def test_a_cassette_serves_its_test_under_another_root(
    project: Project, tmp_path_factory: pytest.TempPathFactory
) -> None:
    project.tests("@pytest.mark.replay\ndef test_one():\n    solve('hello')\n")
    project.record().assert_outcomes(passed=1)
    root = tmp_path_factory.mktemp("root")
    ini = project.pytester.path / "tox.ini"
    project.replay(f"--rootdir={root}", "-c", str(ini), "test_agent.py").assert_outcomes(passed=1)
