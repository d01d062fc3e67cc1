"""A short run of what `make fuzz` does a million times."""

from __future__ import annotations

import math

import pytest

from tests.fuzz.run import fuzz


@pytest.mark.parametrize("seed", range(4))
def test_damaged_exchanges_never_raise_and_never_mispair(seed: int) -> None:
    """A thousand damaged exchanges of every protocol keep the rules of a step."""
    done, outcomes, failure = fuzz(seed, 1000, math.inf)
    assert failure is None
    assert done == 1000
    assert set(outcomes) <= {"ok", "error", "abandoned"}
