"""The command ``rollout-trace``: one module a command, listed in ``app.py``. Needs the extra ``cli``.

Public: the command itself, its options, exit codes and what it prints with ``--json``. The modules are internal.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # Not from `typing`, nor `collections`: `rollout-trace run` has no time for such imports.
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(args: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code: 0 fine, 1 something was found, 2 it could not be done."""
    given = sys.argv[1:] if args is None else list(args)
    if given[:1] == ["run"] and given[1:2] not in (["-h"], ["--help"]):
        from rollout_trace.cli.launch import launch

        return launch(given[1:])
    try:
        from rollout_trace.cli.app import run
    except ImportError as error:
        if error.name != "click":
            raise
        print(
            "rollout-trace needs the package click. Install it in a checkout with: pip install '.[cli]'",
            file=sys.stderr,
        )
        return 2
    return run(args)
