"""Entry point that Inspect imports before an evaluation. Registers the hooks if the environment asks for it.

Nothing else of the package is imported, and Inspect lists no hooks, unless ``ROLLOUT_TRACE_INSPECT`` is set.
"""

from __future__ import annotations

from rollout_trace_inspect.settings import from_environment

# An unknown engine raises here: Inspect logs that, and nothing is recorded.
if from_environment() is not None:
    from rollout_trace_inspect.hooks import register

    register()
