"""A recovery that is killed.

python -m tests.kills.recoverer FAULT OUTPUT...
"""

from __future__ import annotations

import sys

import rollout_trace as rt
from tests.kills import faults

if __name__ == "__main__":
    faults.arm(sys.argv[1])
    for output in sys.argv[2:]:
        rt.recover(output, write=True)
