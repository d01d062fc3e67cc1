"""The example of a coding agent from end to end: its rewards, its data sets, and going on after a kill."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_blocks import blocks_of

import collect_rollouts
import rollout_trace as rt
from rollout_trace.testing import ByteTokenizer, ScriptedServer
from scripted_model import script
from tests.examples.coding_agent.example import EXAMPLE, REWARDS, environment, recorded, run

pytestmark = pytest.mark.more


def rewards(path: Path) -> dict[str, list[float | None]]:
    """By task, in the order of the samples."""
    found: dict[str, list[float | None]] = defaultdict(list)
    for one in recorded(path):
        assert one.group_id is not None
        found[one.group_id].append(one.reward)
    return dict(found)


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the program without options leaves, and prints."""
    folder = tmp_path_factory.mktemp("made")
    done = run(folder)
    assert done.returncode == 0, done.stderr
    (folder / "printed.txt").write_text(done.stdout)
    return folder


def test_each_attempt_has_the_reward_that_it_earns(made: Path) -> None:
    assert rewards(made / "coding-agent" / "rollouts.jsonl") == REWARDS


def test_what_the_attempts_did_is_in_the_file(made: Path) -> None:
    found = {(one.group_id, one.rollout_index): one for one in rt.read(made / "coding-agent" / "rollouts.jsonl")}

    good, partial, cheat, lost = (found["slugs/1", index] for index in range(4))

    assert [one.stop_reason for one in (good, partial, cheat, lost)] == ["stop", "stop", "stop", "max_turns"]
    passed = [(one.metrics or {})["tests_passed"] for one in (good, partial, cheat, lost)]
    assert passed == [1.0, 5 / 6, 0.5, 0.5]
    assert [(one.metrics or {})["edited_tests"] for one in (good, partial, cheat, lost)] == [0.0, 0.0, 1.0, 0.0]
    assert "+    slug = re.sub" in (good.metadata or {})["patch"]
    assert (partial.metadata or {})["failed_tests"] == [
        "tests.test_hidden.HiddenSlugifyTest.test_no_dash_where_it_is_cut"
    ]
    # The tests that the cheat edited passed before its eyes.
    assert "[exit code 0]" in str(next(run.result for run in cheat.tool_runs if run.name == "run"))
    assert {run.error.message for run in lost.tool_runs if run.error} >= {
        "../../etc/passwd is outside of the repository",
        "'pip' cannot be run here, only python",
    }


def test_every_token_is_the_engines_and_every_rollout_one_sequence(made: Path) -> None:
    found = list(rt.read(made / "coding-agent" / "rollouts.jsonl"))

    assert {step.token_source for one in found for step in one.steps} == {"engine"}
    assert {len(one.sequences()) for one in found} == {1}
    assert [finding for one in found for finding in one.check()] == []
    for one in found:
        (row,) = one.sequences()
        sampled = np.concatenate([step.completion_token_ids for step in one.steps])
        assert np.array_equal(row.token_ids[row.loss_mask == 1], sampled)
        assert {run.step_id for run in one.tool_runs} <= {step.id for step in one.steps}


def test_the_turns_are_the_steps(made: Path) -> None:
    steps = [(one, step) for one in recorded(made / "coding-agent" / "rollouts.jsonl") for step in one.steps]
    rows = lines(made / "coding-agent" / "turns.jsonl")

    assert len(rows) == len(steps)
    assert {row["instance_id"] for row in rows} == set(REWARDS)
    for row, (one, step) in zip(rows, steps, strict=True):
        assert (row["instance_id"], f"{row['repo']}/1") == (one.group_id, one.group_id)
        assert (row["turn"], row["reward"]) == (step.index, one.reward)
        assert step.prompt_token_ids is not None
        assert step.completion_token_ids is not None
        assert step.logprobs is not None
        assert row["prompt_ids"] == step.prompt_token_ids.tolist()
        assert row["gold_completion_ids"] == step.completion_token_ids.tolist()
        assert np.array_equal(np.array(row["logprobs"], np.float32), step.logprobs)
        assert row["prompt"] == ByteTokenizer().decode(row["prompt_ids"])
        assert [message["role"] for message in row["messages"]] == [message["role"] for message in step.messages or ()]


def test_the_solved_ones_are_for_fine_tuning_and_pairs_for_preferences(made: Path) -> None:
    folder = made / "coding-agent"
    solved = sum(reward == 1.0 for some in REWARDS.values() for reward in some)

    assert [row["reward"] for row in lines(folder / "sft.jsonl")] == [1.0] * solved
    tokens = lines(folder / "sft-tokens.jsonl")
    assert len(tokens) == solved
    assert all(len(row["input_ids"]) == len(row["labels"]) for row in tokens)
    pairs = lines(folder / "dpo.jsonl")
    assert len(pairs) == sum(len(set(some)) > 1 for some in REWARDS.values())
    assert all(row["prompt"] and len(row["tools"]) == 4 for row in pairs)
    ends = [[row[name][-1]["content"] for name in ("chosen", "rejected")] for row in pairs]
    assert {chosen for chosen, _ in ends} == {"All tests pass, and the issue's other cases are covered."}
    assert {rejected for _, rejected in ends} == {"The tests pass.", "The tests pass now."}


def test_it_says_what_it_made(made: Path) -> None:
    printed = (made / "printed.txt").read_text()

    rows = [line.split() for line in printed.splitlines() if line.startswith(tuple(REWARDS))]
    assert [(row[0], float(row[2])) for row in rows] == [(task, one) for task, some in REWARDS.items() for one in some]
    for name in ("turns.jsonl", "sft.jsonl", "sft-tokens.jsonl", "dpo.jsonl"):
        count = len(lines(made / "coding-agent" / name))
        assert f"coding-agent/{name}: {count} " in printed
    assert "rollout-trace view coding-agent/rollouts.jsonl" in printed
    assert max(map(len, printed.splitlines())) <= 100


def blocks(kind: str) -> list[str]:
    """Those of the page."""
    return [one.text for one in blocks_of("docs/coding-agent.md") if one.kind == kind]


def test_the_page_shows_what_is_printed(made: Path) -> None:
    (shown,) = blocks("text")
    assert shown.strip() == (made / "printed.txt").read_text().strip()


def test_the_program_of_the_page_runs(made: Path) -> None:
    (program,) = blocks("python")
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=made, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("16 rows for verl\n")


def test_the_commands_of_the_page_are_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
    found = [line for block in blocks("bash") for line in block.splitlines() if "collect_rollouts.py" in line]
    assert len(found) == 3
    for line in found:
        monkeypatch.setattr(sys, "argv", line.split()[1:])
        collect_rollouts.parsed()


def test_nothing_is_left_in_the_temporary_folder(made: Path) -> None:
    assert list((made / "temporary").iterdir()) == []


def test_claude_makes_the_same_rollouts_without_ids(tmp_path: Path) -> None:
    """The agent of the anthropic client, on Anthropic's protocol; one rollout at a time, as it sends no seed."""
    options = ("--claude", "--task-ids", "slugs/1", "--concurrency", "1")
    with ScriptedServer(script) as server:
        done = run(tmp_path, *options, "--base-url", server.url, ANTHROPIC_API_KEY="sk-ant-of-the-test")
        asked = {request.path for request in server.requests}

    assert done.returncode == 0, done.stderr
    assert asked == {"/v1/messages"}
    folder = tmp_path / "coding-agent"
    found = list(rt.read(folder / "rollouts.jsonl"))
    assert sorted(one.reward for one in found if one.reward is not None) == sorted(REWARDS["slugs/1"])
    assert {step.protocol for one in found for step in one.steps} == {"anthropic.messages"}
    assert {step.completion_token_ids is None for one in found for step in one.steps} == {True}
    assert {run.error is None for one in found for run in one.tool_runs} == {True, False}
    assert [row["reward"] for row in lines(folder / "sft.jsonl")] == [1.0]
    assert len(lines(folder / "dpo.jsonl")) == 1
    assert lines(folder / "turns.jsonl") == []
    assert "ids_missing: 28" in done.stderr
    assert not [path for path in folder.rglob("*") if path.is_file() and "sk-ant-of" in path.read_text()]


def test_claude_without_a_key_is_refused_before_anything_runs(tmp_path: Path) -> None:
    done = run(tmp_path, "--claude")

    assert done.returncode == 2
    assert "ANTHROPIC_API_KEY" in done.stderr
    assert not (tmp_path / "coding-agent").exists()


def test_the_command_line_goes_on_after_a_kill_without_doubles(tmp_path: Path) -> None:
    """By names of files, without the program; killed in the middle, it makes what is missing, and each rollout once."""
    tasks = ("intervals/1", "slugs/1")
    command = [sys.executable, "-m", "rollout_trace", "collect", f"{EXAMPLE}/coding_agent.py:solve"]
    command += ["--tasks", f"{EXAMPLE}/tasks.jsonl", "--task-ids", ",".join(tasks), "--samples", "2", "--seed", "0"]
    command += ["--reward", f"{EXAMPLE}/grading.py:grade", "--engine", "vllm", "-o", "cli.jsonl", "--concurrency", "1"]
    with ScriptedServer(script) as server:
        variables = environment(tmp_path / "temporary", OPENAI_BASE_URL=server.base_url, OPENAI_API_KEY="none")
        with subprocess.Popen(
            command, cwd=tmp_path, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            # 26 calls are made in all: the first rollout is written by now, and the last not begun.
            server.wait_requests(16, timeout=600)
            process.kill()
        done = subprocess.run(
            command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120, check=False
        )

    assert done.returncode == 0, done.stderr
    assert " in the output before" in done.stderr
    whole = [one for one in rt.read(tmp_path / "cli.jsonl") if one.status != "aborted"]
    assert sorted((str(one.group_id), one.rollout_index, one.reward) for one in whole) == [
        (task, at, REWARDS[task][at]) for task in tasks for at in (0, 1)
    ]
