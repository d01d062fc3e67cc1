"""What a framework shows its user of a stream: with an engine's fields asked for it is what it shows without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import rollout_trace as rt


def assert_shows_the_same(shown: Callable[[Any], Sequence[object]], without: int, everything: int) -> None:
    """Nothing comes only because vLLM then sends a chunk for every token, also while it reads a tool call.

    Args:
        shown: runs an agent, recorded with this engine, or not at all where that is None. Returns what its user is
            shown of each event of the stream: nothing that differs from run to run, nor the fields that were asked for.
        without: the number of events without the recorder.
        everything: their number with all that vLLM sends. Both numbers are of the newest release that is tested, and in
            the table of docs/integrations.md.
    """
    bare, ours, every = (list(shown(engine)) for engine in (None, "vllm", rt.Engine("vllm", show_added=True)))
    assert ours == bare
    integration, *_ = rt.integrations()
    if (integration.framework_version or "").startswith(integration.tested[1]):
        assert (len(bare), len(every)) == (without, everything)
