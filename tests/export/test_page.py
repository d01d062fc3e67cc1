"""The table of docs/export.md of what users set and consumers have no place for, against what exporters count."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from rollout_trace import export
from rollout_trace.export import ExportReport
from tests.consumers import recorded
from tests.export.test_names import EXPORTERS

PAGE = Path(__file__).parents[2] / "docs" / "export.md"


def test_what_is_counted_where_there_is_no_place() -> None:
    """The table of what users set, against what each exporter counts."""
    words = {
        "Step.reward": "step rewards",
        "Step.advantage": "step advantages",
        "Step.policy_version": "policy versions",
        "Trajectory.rewards": "rewards by name",
    }
    options: dict[str, dict[str, Any]] = {"tinker": {"advantages": None}, "batches": {"batch_size": 2}}
    exporters = [name for name in EXPORTERS if name != "verl_prompts"] + ["batches", "openrlhf", "trl_rollout"]
    counted: dict[str, set[str]] = {what: set() for what in words}
    for name in exporters:
        report, given = ExportReport(), {"source": "sampled"} if name == "distillation" else options.get(name, {})
        list(getattr(export, name)(recorded.annotated(), report=report, **given))
        for what, reason in words.items():
            if reason in report.dropped:
                counted[what].add(name)
    section = PAGE.read_text(encoding="utf-8").partition("## What has no place")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+\.\w+)` \| ([^|]+) \|", section, re.MULTILINE)
    assert {what: set(re.findall(r"`(\w+)`", names)) for what, names in rows} == counted
