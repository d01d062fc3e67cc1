"""``rollout-trace run --reward-from``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rollout_trace.testing import ScriptedServer
from tests.amount import some

from .running import CALL, Done, recorded, run


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(lambda request: "hello") as server:
        yield server


def _run(server: ScriptedServer, folder: Path, program: str) -> Done:
    (folder / "agent.py").write_text(CALL + program)
    return run(folder, "-q", "--reward-from", "reward.json", "agent.py", SERVER=server.base_url)


REWARDS = [
    ("0.5", (0.5, None, None)),
    ("0", (0.0, None, None)),
    ('{"reward": 1}', (1.0, None, None)),
    ('{"rewards": {"format": 1}, "metrics": {"turns": 3}}', (None, {"format": 1.0}, {"turns": 3.0})),
]


@pytest.mark.parametrize(
    ("text", "values"),
    some(REWARDS, *REWARDS[1::2]),
)
def test_the_programs_trajectory_has_it(
    text: str, values: tuple[object, ...], server: ScriptedServer, tmp_path: Path
) -> None:
    done = _run(server, tmp_path, f"ask()\nopen('reward.json', 'w').write({text!r})\nsys.exit(3)")
    assert done == (3, "", "")
    (trajectory,) = recorded(tmp_path / "rollouts.jsonl")
    assert (trajectory.reward, trajectory.rewards, trajectory.metrics) == values


def test_the_only_trajectory_that_the_program_opened_has_it(server: ScriptedServer, tmp_path: Path) -> None:
    program = "import rollout_trace as rt\nwith rt.trajectory('own'):\n    ask()\nopen('reward.json', 'w').write('2')"
    assert _run(server, tmp_path, program) == (0, "", "")
    (trajectory,) = recorded(tmp_path / "rollouts.jsonl")
    assert (trajectory.name, trajectory.reward) == ("own", 2.0)


SEVERAL = """
import rollout_trace as rt
for name in "ab":
    with rt.trajectory(name):
        ask()
"""


NO_REWARDS = [
    ("ask()", "the program has not written it"),
    ("ask()\nos.mkdir('reward.json')", "IsADirectoryError: [Errno 21] Is a directory"),
    ("ask()\nopen('reward.json', 'w').write('{')", "it is not JSON: "),
    ("ask()\nopen('reward.json', 'w').write('NaN')", "the reward is nan"),
    ("ask()\nopen('reward.json', 'w').write('\"high\"')", "the reward is 'high'"),
    ("ask()\nopen('reward.json', 'w').write('{\"score\": 1}')", "it has the key 'score'"),
    ("ask()\nopen('reward.json', 'w').write('{\"rewards\": 1}')", "rewards is 1; expected an object of numbers"),
    (SEVERAL + "open('reward.json', 'w').write('1')", "one reward cannot be given to several"),
]


@pytest.mark.parametrize(("program", "problem"), some(NO_REWARDS, *NO_REWARDS[::4]))
def test_what_is_no_reward_is_one_line_of_warning(
    program: str, problem: str, server: ScriptedServer, tmp_path: Path
) -> None:
    done = _run(server, tmp_path, program + "\nsys.exit(3)")
    assert done.code == 3
    assert done.err.startswith(f"rollout-trace: no reward from {tmp_path / 'reward.json'}: ")
    assert problem in done.err
    assert done.err.count("\n") == 1
    assert {one.reward for one in recorded(tmp_path / "rollouts.jsonl")} == {None}


def test_the_reward_of_an_earlier_run_is_not_taken(server: ScriptedServer, tmp_path: Path) -> None:
    (tmp_path / "reward.json").write_text("1")
    done = _run(server, tmp_path, "ask()")
    assert "it was there before the program began, and the program did not change it" in done.err
    assert [one.reward for one in recorded(tmp_path / "rollouts.jsonl")] == [None]
