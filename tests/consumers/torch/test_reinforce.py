"""A policy learns from what was recorded of it, in fewer iterations than the example runs by itself."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import rollout_trace as rt
from tests.consumers.torch import example

ITERATIONS = 12


@pytest.fixture(scope="module")
def reinforce() -> Any:
    return example.load("reinforce")


@pytest.fixture(scope="module", autouse=True)
def settings_of_torch() -> Iterator[None]:
    with example.settings_of_torch():
        yield


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The recorded files of a run of the script, and what it printed."""
    folder = tmp_path_factory.mktemp("rollouts")
    arguments = ("--iterations", str(ITERATIONS), "--out", str(folder))
    return folder, example.printed("reinforce", *arguments, options=("-W", "error"))


def test_the_reward_rises(learned: tuple[Path, str]) -> None:
    rewards = [float(value) for value in re.findall(r"reward (\d\.\d+) ", learned[1])]
    assert len(rewards) == ITERATIONS
    assert sum(rewards[-3:]) > 4 * sum(rewards[:3]), rewards


def test_the_page_shows_lines_as_they_are_printed(learned: tuple[Path, str]) -> None:
    """docs/training.md: what `python examples/reinforce.py` prints ("ratio off by" and so on), save its numbers."""
    example.assert_shown("docs/training.md", "ratio off by", learned[1])


def test_the_first_ratios_are_one(learned: tuple[Path, str]) -> None:
    errors = [float(value) for value in re.findall(r"ratio off by (\S+) ", learned[1])]
    assert len(errors) == ITERATIONS
    assert max(errors) <= 1e-3


def test_the_files_hold_what_was_sampled(learned: tuple[Path, str], reinforce: Any) -> None:
    """One row a trajectory, with every token of both turns; an id is the code point of what was said."""
    paths = sorted(learned[0].iterdir())
    assert len(paths) == ITERATIONS
    stops = set()
    for path in (paths[0], paths[-1]):
        trajectories = list(rt.read(path))
        assert len(trajectories) == len(reinforce.DIGITS) * reinforce.ROLLOUTS
        for trajectory in trajectories:
            first, second = trajectory.steps
            (row,) = trajectory.sequences()
            assert row.step_ids == (first.id, second.id)
            assert row.loss_mask.sum() == trajectory.n_output_tokens
            for step, (begin, end) in zip(trajectory.steps, row.spans, strict=True):
                said = "".join(map(chr, row.token_ids[begin:end]))
                assert step.completion is not None
                assert said.removesuffix(reinforce.END) == step.completion.content
                assert said.endswith(reinforce.END) == (step.finish_reason == "stop")
                stops.add(step.finish_reason)
    assert stops == {"stop", "length"}


def test_a_ratio_tells_what_is_wrong(learned: tuple[Path, str], reinforce: Any) -> None:
    """Of a new policy, which sampled the first file, with logprobs, ids or a mask that are a little off."""
    good = reinforce.batch_of(rt.read(learned[0] / "000.jsonl"))
    row, at = 5, int(good.sampled[5].nonzero()[0])

    def error(**changed: Any) -> float:
        policy = reinforce.Policy(0)
        optimizer = torch.optim.Adam(policy.modules.parameters(), reinforce.LEARNING_RATE)
        return float(reinforce.learn(policy, optimizer, dataclasses.replace(good, **changed)))

    def at_one_place(name: str, change: Any) -> Any:
        array = getattr(good, name).clone()
        array[row, at] = change(array[row, at])
        return array

    def one_too_early() -> Any:
        sampled = good.sampled.clone()
        sampled[row, at - 1] = True
        return sampled

    assert error() <= 1e-5
    assert error(logprobs=at_one_place("logprobs", lambda value: value - 0.01)) > 1e-3
    assert error(token_ids=at_one_place("token_ids", lambda value: (value + 1) % 128)) > 1e-3
    assert error(logprobs=good.logprobs.roll(1, dims=1)) > 1e-3
    assert error(sampled=one_too_early()) > 1e-3


def test_a_seed_decides_everything(reinforce: Any, tmp_path: Path) -> None:
    """Whatever the threads do, and whatever an earlier run left in the folder."""
    runs = []
    for name, seed in (("here", 7), ("there", 8), ("here", 7)):
        runs.append(reinforce.run(2, seed, tmp_path / name))
    assert runs[0] == runs[2]
    assert runs[0] != runs[1]


def test_no_rise_is_a_failure(reinforce: Any) -> None:
    """A single iteration has nothing to rise from."""
    with pytest.raises(SystemExit, match="the reward did not rise"):
        reinforce.main(["--iterations", "1"])


def test_foreign_logprobs_are_a_failure(reinforce: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that reports the logprobs of another temperature than it samples at."""
    sample = reinforce.Policy.sample

    def hotter(*arguments: Any) -> tuple[list[int], list[float]]:
        ids, logprobs = sample(*arguments)
        return ids, [0.99 * value for value in logprobs]

    monkeypatch.setattr(reinforce.Policy, "sample", hotter)
    with pytest.raises(SystemExit, match="the logprobs are not the policy's"):
        reinforce.main(["--iterations", "1"])
