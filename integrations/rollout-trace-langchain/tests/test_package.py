"""The distribution: lazy, listed, and clear about a missing framework."""

from __future__ import annotations

import subprocess
import sys

import pytest

import rollout_trace as rt
import rollout_trace_langchain


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_importing_it_imports_no_framework() -> None:
    code = "import sys, rollout_trace_langchain._about; print([n for n in sys.modules if n.startswith('langchain')])"
    assert python(code) == "[]"


def test_a_missing_framework_gives_two_sentences() -> None:
    code = """
import sys
sys.modules["langchain_core"] = None
import rollout_trace_langchain
try:
    rollout_trace_langchain.record
except ImportError as error:
    print(error)
"""
    said = python(code)
    assert said.startswith("rollout-trace-langchain needs langchain-core, which cannot be imported here (")
    assert said.endswith("with: pip install . ./integrations/rollout-trace-langchain")


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        rollout_trace_langchain.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_it_is_listed_and_its_framework_is_in_the_tested_range() -> None:
    found = [one for one in rt.integrations() if one.name == "langchain"]
    if not found:
        pytest.skip("the distribution is not installed here")
    (listed,) = found
    assert (listed.distribution, listed.framework, listed.is_tested) == (
        "rollout-trace-langchain", "langchain-core", True,
    )  # fmt: skip
