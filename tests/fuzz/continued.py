"""Damaged exchanges as further calls of a trajectory: their steps are those that each gives alone, read whole."""

from __future__ import annotations

from rollout_trace.data.lists import ListStore
from rollout_trace.data.model import Step
from rollout_trace.data.tokens import TokenStore
from rollout_trace.testing import Exchange
from rollout_trace.wire.steps import Stores, exchange_of


class _AllTokens(TokenStore):
    long_text = 1


class _AllLists(ListStore):
    long_text = 1


class _NoTokens(TokenStore):
    long_text = 2**62


class _NoLists(ListStore):
    long_text = 2**62


def comparing() -> Stores:
    """Stores of a trajectory that compares every text with what it has, however short."""
    return Stores(tokens=_AllTokens(), messages=_AllLists(), tools=_AllLists())


def reading() -> Stores:
    """Stores of one that compares none."""
    return Stores(tokens=_NoTokens(), messages=_NoLists(), tools=_NoLists())


def check_continued(protocol: str, exchange: Exchange, request: bytes | None, response: bytes, stores: Stores) -> None:
    """Decodes an exchange as the next call of a trajectory, and alone."""
    steps, whole = (_steps(protocol, exchange, request, response, each) for each in (stores, reading()))
    assert steps == whole, "compared with earlier calls it gives other steps"


def _steps(protocol: str, exchange: Exchange, request: bytes | None, response: bytes, stores: Stores) -> list[Step]:
    kind, status = exchange.content_type or None, exchange.status or 0
    steps, _ = exchange_of("c", protocol, request, response, content_type=kind, status=status, stores=stores)
    return steps
