"""The commands: their names, and the line that ``rollout-trace --help`` shows. A module is imported when it is run."""

from __future__ import annotations

COMMANDS = {
    "annotate": "Note a reward or a label that became known later.",
    "collect": "Run an agent over tasks and record each run.",
    "merge": "Write several files as one: notes folded in, doubles dropped.",
    "recover": "Show, or write, what dead processes left in their journals.",
    "run": "Run a program and record its calls.",
}
"""``NAME`` is ``NAME`` in ``rollout_trace/cli/NAME.py``: a ``click.Command`` that returns its exit code."""
