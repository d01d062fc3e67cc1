"""docs/train-prime-rl.md, run as pasted on what the page Start records."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from page_programs import ROOT, assert_printed, exec_page, page_blocks, run_page

PAGE = ROOT / "docs" / "train-prime-rl.md"
FROM_A_CHECKOUT = "Training samples of prime-rl"
CHECKOUTS = os.environ.get("ROLLOUT_TRACE_CHECKOUTS")
"""A folder with checkouts ``prime-rl``, which is on no index, and ``verifiers``, of one day."""
_BEFORE = """\
import importlib, sys
from pathlib import Path
from tests.consumers.modules import skip_init
names = ["prime_rl", "prime_rl.transports", "prime_rl.transports.rollouts", "prime_rl.orchestrator"]
skip_init(*names, root=Path(sys.argv[1]))
types = importlib.import_module("prime_rl.transports.rollouts.types")
sys.modules["prime_rl.transports.rollouts"].TrainingSample = types.TrainingSample  # Its own imports read settings.
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The reader's folder, which is the current one, with ``rollouts.jsonl``."""
    made = tmp_path / "page"
    made.mkdir()
    (made / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(made)
    run_page(ROOT / "docs" / "start.md", made, {}, only=("Record",))
    return made


def test_the_page_reads_what_start_records(folder: Path) -> None:
    exec_page(PAGE, skip=(FROM_A_CHECKOUT,))


def test_prime_rl_makes_training_samples_of_it(folder: Path) -> None:
    if CHECKOUTS is None or not Path(CHECKOUTS, "prime-rl").is_dir():
        pytest.skip("no checkout of prime-rl: set ROLLOUT_TRACE_CHECKOUTS to a folder that has one")
    exec_page(PAGE, skip=("What verifiers reads", FROM_A_CHECKOUT))
    program, shown = [block.text for block in page_blocks(PAGE) if block.section == FROM_A_CHECKOUT]
    source = Path(CHECKOUTS, "prime-rl", "src")
    paths = [str(Path(CHECKOUTS, "verifiers")), str(source), str(ROOT)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", _BEFORE + program, str(source)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert_printed(shown, done.stdout)
