"""docs/train-prime-rl.md, run as pasted on what the page Start records."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from page_blocks import ROOT, Block, blocks_of

from tests.documentation.reader import assert_shown, read_page, record_start
from tests.documentation.stage import programs

PAGE = "docs/train-prime-rl.md"
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


def of_prime_rl(block: Block) -> bool:
    return FROM_A_CHECKOUT in block.headings


def of_a_file(block: Block) -> bool:
    """What is about the adapter is read by ``test_harness``."""
    return "An agent in the trainer" not in block.headings and not of_prime_rl(block)


def test_the_page_reads_what_start_records(tmp_path: Path) -> None:
    record_start(tmp_path)
    read_page(PAGE, tmp_path, programs, wanted=of_a_file)


def test_prime_rl_makes_training_samples_of_it(tmp_path: Path) -> None:
    if CHECKOUTS is None or not Path(CHECKOUTS, "prime-rl").is_dir():
        pytest.skip("no checkout of prime-rl: set ROLLOUT_TRACE_CHECKOUTS to a folder that has one")
    record_start(tmp_path)
    read_page(PAGE, tmp_path, programs, wanted=lambda block: "From the file to traces" in block.headings)
    program, shown = [block.text for block in blocks_of(PAGE) if of_prime_rl(block)]
    source = Path(CHECKOUTS, "prime-rl", "src")
    paths = [str(Path(CHECKOUTS, "verifiers")), str(source), str(ROOT)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", _BEFORE + program, str(source)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert_shown(shown, done.stdout)
