"""A Ray cluster on this machine, for the tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

# Before Ray is imported: it sends nothing anywhere.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_DEDUP_LOGS"] = "0"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a cluster with two CPUs, started before the tests and ended after them."""
    import ray

    started = ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield started.address_info["gcs_address"]
    ray.shutdown()
