"""``rollout-trace --versions``."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path

import pytest

import rollout_trace as rt

from .command import fresh_command as command


def test_it_prints_what_a_report_of_a_defect_needs(tmp_path: Path) -> None:
    done = command(tmp_path, "--versions")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    python = f"{platform.python_version()} ({platform.python_implementation()})"
    assert lines[:3] == [f"rollout-trace {rt.__version__}", f"Python {python}", platform.platform()]
    assert f"openai {metadata.version('openai')}" in lines
    found = command(tmp_path, "--versions", "--json").json
    assert (found["rollout-trace"], found["python"], found["platform"]) == (rt.__version__, python, platform.platform())
    assert {"msgspec", "numpy", "openai", "orjson"} <= set(found["packages"])
    assert found["packages"] == {name: metadata.version(name) for name in found["packages"]}


@pytest.mark.parametrize(
    ("tested", "shown"),
    [
        (("8.0", "99.9"), f"rollout-trace-tiny 1.2 (pytest {pytest.__version__})"),
        (("1.0", "1.8"), f"rollout-trace-tiny 1.2 (pytest {pytest.__version__}, tested with 1.0 to 1.8)"),
        (None, "rollout-trace-tiny 1.2 (no-such-framework is not installed)"),
    ],
)
def test_an_integration_is_shown_with_its_framework(
    tested: tuple[str, str] | None, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "rollout_trace_tiny-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rollout-trace-tiny\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[rollout_trace.integrations]\ntiny = tiny_about:ABOUT\n")
    framework = "pytest" if tested else "no-such-framework"
    about = f"About(framework={framework!r}, tested={tested or ('1', '2')})"
    (tmp_path / "tiny_about.py").write_text(f"from rollout_trace.integration import About\nABOUT = {about}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert shown in command(tmp_path, "--versions").out.splitlines()
    one = command(tmp_path, "--versions", "--json").json["integrations"]
    assert [(each["distribution"], each["framework"]) for each in one] == [("rollout-trace-tiny", framework)]
