"""The bare client."""

from __future__ import annotations

from benchmarks.peers.adapters.base import Adapter

Peer = Adapter
