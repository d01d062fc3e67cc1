"""What docs/engines.md has of samplers: its block for vLLM, with a stand-in, and its tables."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from page_blocks import ROOT, run_blocks

import rollout_trace as rt
from rollout_trace.wire import PROTOCOLS
from tests.clients.samplers.standin import LLM, SamplingParams, outputs


def test_the_block_for_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("vllm")
    module.LLM = lambda name: LLM(outputs("chat"))  # type: ignore[attr-defined]
    module.SamplingParams = SamplingParams  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.chdir(tmp_path)
    run_blocks("docs/engines.md", "vLLM")
    (run,) = rt.read(tmp_path / "rollouts.jsonl")
    assert [step.protocol for step in run.steps] == ["vllm.llm"]
    assert run.reward is not None


def test_the_tables_name_what_there_is() -> None:
    text = (ROOT / "docs" / "engines.md").read_text()
    rows = set(re.findall(r"^\| `rt\.(\w+)` \|", text, re.M))
    assert rows == {"wrap_vllm", "wrap_tinker", "wrap_transformers"}
    named = set(re.findall(r"`((?:vllm|tinker|transformers)\.(?:llm|sample|generate))` \|$", text, re.M))
    assert named == {"vllm.llm", "tinker.sample", "transformers.generate"}
    assert named <= set(PROTOCOLS)
    options = {name for one in rows for name in list(inspect.signature(getattr(rt, one)).parameters)[1:]}
    table = text.split("| argument |")[1].split("## vLLM")[0]
    assert options == set(re.findall(r"`(\w+)(?:=\w+)?`(?=[^|]*\| )", table)) & {*options, "engine"}
