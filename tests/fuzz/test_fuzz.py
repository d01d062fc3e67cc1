"""A short run of what `make fuzz` does a million times."""

from __future__ import annotations

import math

import pytest

from tests.amount import amount
from tests.fuzz.run import fuzz


@pytest.mark.amount
@pytest.mark.parametrize("seed", range(4))
def test_damaged_exchanges_never_raise_and_never_mispair(seed: int) -> None:
    """Damaged exchanges of every protocol keep the rules of a step."""
    count = amount(150, 400, 10_000)
    done, outcomes, failure = fuzz(seed, count, math.inf)
    assert failure is None
    assert done == count
    assert set(outcomes) <= {"ok", "error", "abandoned"}
