"""What the example of a coding agent leaves, as ``datasets`` reads it."""

from __future__ import annotations

from pathlib import Path

import datasets
import numpy as np
import pytest

from tests.examples.coding_agent.example import REWARDS, recorded, run

TASK = "slugs/1"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The four attempts at one task."""
    folder = tmp_path_factory.mktemp("coding")
    done = run(folder, "--task-ids", TASK, "--parquet")
    assert done.returncode == 0, done.stderr
    return folder / "coding-agent"


def load(path: Path) -> datasets.Dataset:
    kind = "parquet" if path.suffix == ".parquet" else "json"
    return datasets.load_dataset(kind, data_files=str(path), split="train", cache_dir=str(path.parent / "cache"))


def test_the_turns_are_the_recorded_calls(made: Path) -> None:
    steps = [(one, step) for one in recorded(made / "rollouts.jsonl") for step in one.steps]
    rows = load(made / "turns.parquet")

    assert len(rows) == len(steps) == 28
    for row, (one, step) in zip(rows, steps, strict=True):
        assert (row["repo"], row["instance_id"], row["turn"]) == ("slugs", TASK, step.index)
        assert row["reward"] == one.reward
        recorded_ids = (step.prompt_token_ids, step.completion_token_ids)
        assert all(ids is not None for ids in recorded_ids)
        for name, ids in zip(("prompt_ids", "gold_completion_ids"), recorded_ids, strict=True):
            assert np.array_equal(row[name], np.array(ids))
        assert step.logprobs is not None
        assert np.array_equal(np.array(row["logprobs"], np.float32), step.logprobs)
        assert row["prompt"].startswith("<|im_start|>system")
        assert [message["role"] for message in row["messages"]] == [message["role"] for message in step.messages or ()]
    rewards = {(one.rollout_index, one.reward) for one, _ in steps}
    assert rewards == set(enumerate(REWARDS[TASK]))


def test_the_files_for_fine_tuning_and_preferences_have_their_columns(made: Path) -> None:
    chat, tokens, pairs = (load(made / name) for name in ("sft.jsonl", "sft-tokens.jsonl", "dpo.jsonl"))

    assert (chat.num_rows, tokens.num_rows, pairs.num_rows) == (1, 1, 1)
    assert {"messages", "tools", "reward"} <= set(chat.column_names)
    assert {"input_ids", "labels"} <= set(tokens.column_names)
    trained = [id for id, label in zip(tokens[0]["input_ids"], tokens[0]["labels"], strict=True) if label != -100]
    (solved,) = (one for one in recorded(made / "rollouts.jsonl") if one.reward == 1.0)
    assert np.array_equal(trained, np.concatenate([np.array(step.completion_token_ids) for step in solved.steps]))
    assert set(pairs.column_names) == {"prompt", "chosen", "rejected", "tools"}
    assert [message["role"] for message in pairs[0]["prompt"]] == ["system", "user"]
    assert pairs[0]["chosen"][-1]["content"].startswith("All tests pass")
    assert pairs[0]["rejected"][-1]["content"] == "The tests pass."
