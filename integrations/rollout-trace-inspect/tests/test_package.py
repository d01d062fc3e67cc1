"""The package itself: what it says of its framework, and what it does without it."""

from __future__ import annotations

import subprocess
import sys

import rollout_trace as rt


def test_it_is_listed_and_its_framework_is_tested() -> None:
    (found,) = [one for one in rt.integrations() if one.name == "inspect"]
    assert (found.distribution, found.framework) == ("rollout-trace-inspect", "inspect-ai")
    assert found.is_tested, f"tests ran with inspect-ai {found.framework_version}: say so in _about.py"


def test_importing_it_imports_no_framework() -> None:
    modules = "rollout_trace_inspect, rollout_trace_inspect._about, rollout_trace_inspect._entry"
    code = f"import sys, {modules}; print('inspect_ai' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "False\n"


def test_the_entry_point_imports_no_recorder() -> None:
    """Inspect imports it in every process, also where nothing is to be recorded."""
    code = "import sys, rollout_trace_inspect._entry; print('rollout_trace.record' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "False\n"


def test_without_the_framework_it_says_what_to_install() -> None:
    code = """
import sys
sys.modules["inspect_ai"] = None
import rollout_trace_inspect
try:
    rollout_trace_inspect.record
except ImportError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert said.startswith("rollout-trace-inspect needs inspect-ai, which cannot be imported here (")
    assert said.endswith("with: pip install . ./integrations/rollout-trace-inspect\n")
