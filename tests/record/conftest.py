"""Clients are closed when their test has ended."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .journaled import close_clients


@pytest.fixture(autouse=True)
def clients_are_closed() -> Iterator[None]:
    """An open connection would warn in whichever test the garbage collector runs."""
    yield
    close_clients()
