"""``python -m rollout_trace`` is the command ``rollout-trace``."""

import sys

if __name__ == "__main__":
    from rollout_trace.cli import main

    sys.exit(main())
