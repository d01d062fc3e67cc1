"""What `rollout_trace.export` offers, what it imports, and that every exporter takes every trajectory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollout_trace as rt
from rollout_trace import export
from tests.export.drawn import drawn
from tests.export.plain import plain

CONSUMERS = (
    "agentlightning",
    "areal",
    "art",
    "atif",
    "datasets",
    "harbor",
    "pandas",
    "pyarrow",
    "nemo_gym",
    "nemo_rl",
    "openenv",
    "openrlhf",
    "opentelemetry",
    "rllm",
    "skyrl",
    "slime",
    "tinker",
    "torch",
    "trl",
    "verifiers",
    "verl",
)
# `openrlhf` and `trl_rollout` raise where a trajectory is not one row; their own tests say when. Batches have NaN where
# nothing is known, and spans are no rows.
EXPORTERS = {
    "agent_lightning": export.agent_lightning,
    "areal": export.areal,
    "art": export.art,
    "atif": export.atif,
    "chat": export.chat,
    "distillation": export.distillation,
    "exchanges": export.exchanges,
    "nemo_gym": export.nemo_gym,
    "nemo_rl": export.nemo_rl,
    "openenv": export.openenv,
    "rllm": export.rllm,
    "skyrl": export.skyrl,
    "slime": export.slime,
    "steps": export.steps,
    "tinker": export.tinker,
    "trl": export.trl,
    "trl_dpo": export.trl_dpo,
    "trl_kto": export.trl_kto,
    "trl_prompts": export.trl_prompts,
    "turns": export.turns,
    "verifiers": export.verifiers,
    "verl": export.verl,
    "verl_prompts": export.verl_prompts,
}


def test_no_name_needs_a_consumer() -> None:
    """Each resolves, in a process of its own, and nothing of a consumer's is imported for it."""
    program = f"""
import sys
from rollout_trace import export
for name in export.__all__:
    getattr(export, name)
assert set(export.__all__) <= set(dir(export))
print([name for name in {CONSUMERS!r} if name in sys.modules])
"""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_every_exporter_is_tried() -> None:
    functions = {name for name in export.__all__ if name.islower() and not name.startswith("write")}
    assert functions - set(EXPORTERS) == {"arrow", "batches", "dataset", "features", "openrlhf", "otel", "trl_rollout"}


@pytest.mark.hypothesis
@pytest.mark.parametrize("name", EXPORTERS)
def test_every_trajectory_is_taken(name: str) -> None:
    """Plain data and arrays come out, as JSON can hold them; a strict export gives the same, or says what it cannot.

    Strict is about tokens and rewards; what else is left out raises only where that is asked for.
    """
    for runs in drawn():
        assert_taken(name, runs)


def assert_taken(name: str, runs: list[rt.Trajectory]) -> None:
    options: Any = {"verl_prompts": {"data_source": "tests", "ability": "any"}}.get(name, {})
    exporter: Any = EXPORTERS[name]
    report = export.ExportReport()
    rows = exporter(runs, report=report, **options)
    json.dumps(plain(rows), allow_nan=False)
    for strict, fatal in ((True, set(report.dropped) - report.metadata), ("metadata", set(report.dropped))):
        try:
            assert plain(exporter(runs, strict=strict, report=export.ExportReport(), **options)) == plain(rows)
            assert not fatal
        except rt.ExportError:
            assert fatal


MALFORMED: tuple[Any, ...] = (
    {"role": "assistant", "content": "a", "tool_calls": 3},
    {"role": "assistant", "content": "a", "tool_calls": [None, {"function": 3}, {"type": "custom", "custom": "x"}]},
    {"role": "tool", "tool_call_id": ["a"], "content": {"type": ["text"]}},
    {"role": "user", "content": [{"type": ["text"]}, {"type": {}}, None, 3]},
    {"role": ["user"], "content": 3},
    {"type": ["message"], "output": [{"type": ["text"]}]},
    {"type": {"a": 1}},
    {"role": "user", "content": [{"type": "document", "source": {"type": "content", "content": [{"type": ["x"]}]}}]},
    3,
    None,
)


@pytest.mark.parametrize("name", EXPORTERS)
@pytest.mark.parametrize("protocol", ["openai.chat", "anthropic.messages", "openai.responses"])
def test_what_no_server_would_take_stops_no_export(name: str, protocol: str) -> None:
    """A request that failed because it was nonsense is recorded too, among others that did not."""
    options: Any = {"verl_prompts": {"data_source": "tests", "ability": "any"}}.get(name, {})
    runs = [
        rt.Trajectory(
            group_id="g",
            reward=float(reward),
            steps=[
                rt.Step(
                    id="a", call_id="a", protocol=protocol, messages=sent, tools=[3, {"type": ["x"]}, {"function": 3}],
                    sampling={"functions": ["f", 3]}, completion=rt.Completion(content="b"), status=status,
                ),
                rt.Step(id="b", call_id="b", protocol=protocol, messages=sent, sampling={"functions": ["f", 3]}),
            ],
        )
        for reward, sent in enumerate([[one] for one in MALFORMED] + [list(MALFORMED)])
        for status in ("ok", "error")
    ]  # fmt: skip
    exporter: Any = EXPORTERS[name]
    json.dumps(plain(exporter(runs, report=export.ExportReport(), **options)), allow_nan=False)


def test_the_report_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    failed = [rt.Trajectory(steps=[rt.Step(id=str(at), call_id=str(at), status="error") for at in range(3)])]
    assert export.trl(failed) == []
    (line,) = caplog.messages
    assert line.startswith("export.trl left out: steps left out: error: 3.")
    with pytest.raises(rt.ExportError, match=r"export.trl: steps left out: error \(trajectory .*, step 0\): 3\."):
        export.trl(failed, strict=True)


def test_old_names_take_what_they_took(tmp_path: Path) -> None:
    ids = np.array([1], np.int32)
    step = rt.Step(id="s", call_id="c", prompt_token_ids=ids, completion_token_ids=ids)
    trajectories = [rt.Trajectory(steps=[step])]
    written = export.write_steps(path=tmp_path / "x.jsonl", trajectories=trajectories)  # type: ignore[call-arg]
    assert written == 1
    rows = export.iter_steps(trajectories)
    next(rows)
    rows.close()
    assert list(rows) == []


@pytest.mark.parametrize(
    ("rows", "name"), [(export.steps, "steps"), ([rt.Trajectory()], "NAME"), (rt.Trajectory(), "NAME")]
)
def test_what_is_no_rows_is_said(tmp_path: Path, rows: Any, name: str) -> None:
    with pytest.raises(TypeError, match=rf"rows is .*: give export\.{name}\.rows\(trajectories\)"):
        export.write(tmp_path / "x.jsonl", rows)
