"""`rt.integrations()`, of a distribution made for the test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rollout_trace as rt
from rollout_trace import guard
from rollout_trace.integration.installed import Integration, framework_missing


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed integration with a framework that is installed: pytest."""
    info = tmp_path / "rollout_trace_tiny-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rollout-trace-tiny\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[rollout_trace.integrations]\ntiny = tiny_about:ABOUT\n")
    about = "from rollout_trace.installed import About\nABOUT = About(framework='pytest', tested=('8.0', '99.9'))\n"
    (tmp_path / "tiny_about.py").write_text(about)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("tiny_about", None)


def named(name: str) -> Integration:
    return next(one for one in rt.integrations() if one.name == name)


def test_an_integration_says_what_it_was_tested_with(tiny: Path) -> None:
    found = named("tiny")
    assert (found.distribution, found.version, found.framework) == ("rollout-trace-tiny", "1.2", "pytest")
    assert (found.framework_version, found.tested, found.is_tested) == (pytest.__version__, ("8.0", "99.9"), True)


@pytest.mark.parametrize(
    ("version", "tested", "is_tested"),
    [
        ("1.8.1", ("1.0", "1.8.1"), True),
        ("1.8.2", ("1.0", "1.8.1"), False),
        ("1.8.2", ("1.0", "1.8"), True),
        ("1.10.0", ("1.0", "1.8"), False),
        ("0.9", ("1.0", "1.8"), False),
        ("1.0.0rc1", ("1.0", "1.8"), True),
        (None, ("1.0", "1.8"), None),
    ],
)
def test_the_tested_range(version: str | None, tested: tuple[str, str], is_tested: bool | None) -> None:
    one = Integration(
        name="tiny", distribution="d", version="1", framework="f", framework_version=version, tested=tested
    )
    assert one.is_tested is is_tested


def test_one_that_cannot_be_read_is_said_and_left_out(tiny: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tiny / "tiny_about.py").write_text("raise RuntimeError('half installed')")
    guard.reset()
    assert "tiny" not in [one.name for one in rt.integrations()]
    assert "'tiny' (tiny_about:ABOUT) cannot be read: RuntimeError: half installed" in caplog.text


def test_a_missing_framework_says_what_to_install() -> None:
    cause = ModuleNotFoundError("No module named 'strands'", name="strands")
    error = framework_missing("rollout-trace-strands", "strands-agents", cause)
    assert str(error) == (
        "rollout-trace-strands needs strands-agents, which cannot be imported here (No module named 'strands'). "
        "Install it, in a checkout of rollout_trace, with: pip install . ./integrations/rollout-trace-strands"
    )
    assert error.name == "strands"
