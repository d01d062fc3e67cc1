"""The commands: their names, and the line that ``rollout-trace --help`` shows. A module is imported when it is run."""

from __future__ import annotations

COMMANDS = {
    "annotate": "Note a reward or a label that became known later.",
    "check": "List what matters for training: findings by trajectory.",
    "collect": "Run an agent over tasks and record each run.",
    "completion": "Print the script that completes commands in a shell.",
    "convert": "Write trajectories in the format of a trainer or a tool.",
    "diff": "Show where two trajectories, or two files, differ first.",
    "filter": "Keep the trajectories for which an expression is true.",
    "head": "Print the first trajectories of files.",
    "import": "Write what other tools have recorded as trajectories.",
    "ls": "List trajectories, one a line.",
    "merge": "Write several files as one: notes folded in, doubles dropped.",
    "mismatch": "Compare a trainer's logprobs with the engine's, and name the cause.",
    "query": "Say how DuckDB asks files in SQL.",
    "recover": "Show, or write, what dead processes left in their journals.",
    "run": "Run a program and record its calls.",
    "schema": "Print the JSON Schema of the file format.",
    "show": "Show a trajectory as a conversation.",
    "split": "Write a file as several, without tearing a group.",
    "stats": "Sum up: rewards, tokens, cost, times, findings.",
    "tail": "Print the last trajectories of files, and those that come.",
    "validate": "Check files against the format, line by line.",
    "versions": "Print the versions that a report of a defect needs.",
    "view": "Look at trajectories on a page in the browser.",
}
"""``NAME`` is ``NAME`` in ``rollout_trace/cli/NAME.py``: a ``click.Command`` that returns its exit code; one that
Python reserves has an underscore behind it there: ``import_``."""
