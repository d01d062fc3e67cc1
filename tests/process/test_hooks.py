"""``rt.instrument(hooks=True)``: the hooks of installed integrations, started and ended for the process."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rollout_trace as rt
from rollout_trace.process import instrument as hooks

ABOUT = """
from rollout_trace.integration import About

ABOUT = About(framework="fake", tested=("1.0", "1.0"), module="fake_framework", start="fake_hook:start")
"""
HOOK = """
import fake_framework

def start():
    fake_framework.recorded.append(1)
    return fake_framework.recorded.pop
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An integration of a framework, as pip leaves them, and another that is broken."""
    for name, about in (("fake", "fake_about:ABOUT"), ("broken", "no_such_module:ABOUT")):
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[rollout_trace.integrations]\n{name} = {about}\n")
    for name, text in (("fake_about", ABOUT), ("fake_hook", HOOK), ("fake_framework", "recorded = []")):
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(hooks, "_hooks", None)
    yield tmp_path
    for name in ("fake_about", "fake_hook", "fake_framework"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("is_imported_before", [True, False])
def test_a_hook_is_started_with_its_framework_and_ended(
    is_imported_before: bool, installed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if is_imported_before:
        importlib.import_module("fake_framework")
    with rt.instrument():
        assert importlib.import_module("fake_framework").recorded == []
        if not is_imported_before:
            del sys.modules["fake_framework"]
        with rt.instrument(hooks=True), rt.instrument(hooks=True):
            assert "fake_hook" not in sys.modules or is_imported_before
            framework = importlib.import_module("fake_framework")
            assert framework.recorded == [1]
        assert framework.recorded == []
    (message,) = caplog.messages
    assert message.startswith("the hook of the integration 'broken' could not be started: ModuleNotFoundError")


def test_a_hook_that_does_not_fit_its_framework_is_left_out(installed: Path, caplog: pytest.LogCaptureFixture) -> None:
    (installed / "fake_framework.py").write_text("")
    with rt.instrument(hooks=True):
        importlib.import_module("fake_framework")
    assert "the hook of the integration 'fake' could not be started: AttributeError" in caplog.messages[-1]


def test_the_hook_of_an_integration_in_an_archive_is_started(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(installed / "broken-1.0.dist-info")
    archive = shutil.make_archive(str(installed.parent / "archive"), "zip", installed)
    monkeypatch.setattr(sys, "path", [archive, *(place for place in sys.path if place != str(installed))])
    with rt.instrument(hooks=True):
        assert importlib.import_module("fake_framework").recorded == [1]


def test_what_reads_distributions_is_not_imported_where_no_integration_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other-1.0.dist-info").mkdir()
    (tmp_path / "other-1.0.dist-info" / "entry_points.txt").write_text("[console_scripts]\nother = other:main\n")
    monkeypatch.setattr(hooks, "_hooks", None)
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "missing")])
    monkeypatch.delitem(sys.modules, "importlib.metadata", raising=False)
    with rt.instrument(hooks=True):
        assert "importlib.metadata" not in sys.modules


def test_hooks_is_true_or_false() -> None:
    with pytest.raises(TypeError, match=r"rt\.instrument\(hooks='langchain'\): expected True or False"):
        rt.instrument(hooks="langchain")  # type: ignore[arg-type]
