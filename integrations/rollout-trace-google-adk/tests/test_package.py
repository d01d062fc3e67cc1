"""The package itself: what it says of its framework, and what it does without it."""

from __future__ import annotations

import subprocess
import sys

import rollout_trace as rt


def printed(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_it_is_listed_and_its_framework_is_tested() -> None:
    (found,) = [one for one in rt.integrations() if one.name == "google-adk"]
    assert (found.distribution, found.framework) == ("rollout-trace-google-adk", "google-adk")
    assert found.is_tested, f"tests ran with google-adk {found.framework_version}: say so in _about.py"


def test_importing_it_imports_no_framework() -> None:
    code = "import sys, rollout_trace_google_adk, rollout_trace_google_adk._about; print('google.adk' in sys.modules)"
    assert printed(code) == "False\n"


def test_importing_all_of_it_changes_no_class_of_the_framework() -> None:
    code = """
from google.adk.runners import Runner
before = Runner.run_async
import rollout_trace_google_adk
rollout_trace_google_adk.record
print(Runner.run_async is before)
rollout_trace_google_adk.RolloutPlugin()
print(Runner.run_async is before)
"""
    assert printed(code) == "True\nFalse\n"


def test_without_the_framework_it_says_what_to_install() -> None:
    code = """
import sys
sys.modules["google.adk"] = None
import rollout_trace_google_adk
try:
    rollout_trace_google_adk.record
except ImportError as error:
    print(error)
"""
    said = printed(code)
    assert said.startswith("rollout-trace-google-adk needs google-adk, which cannot be imported here (")
    assert said.endswith("with: pip install . ./integrations/rollout-trace-google-adk\n")
