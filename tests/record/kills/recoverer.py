"""A recovery that is killed.

python -m tests.record.kills.recoverer FAULT OUTPUT...
"""

from __future__ import annotations

import sys

import rollout_trace as rt
from tests.record.kills import faults


def begin(args: list[str]) -> None:
    """The program."""
    faults.arm(args[0])
    for output in args[1:]:
        rt.recover(output, write=True)


if __name__ == "__main__":
    begin(sys.argv[1:])
