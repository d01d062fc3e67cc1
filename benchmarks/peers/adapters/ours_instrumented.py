"""rollout_trace, with the process instrumented: the client is not touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import rollout_trace as rt
from benchmarks.peers.adapters import ours


class Peer(ours.Peer):
    """As the wrapped one, by `rt.instrument()`."""

    imports = "import rollout_trace as rt; rt.instrument, rt.trajectory"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._instrumentation = rt.instrument()

    def wrap(self, client: Any) -> Any:
        return client
