"""python -m agent "Where is my kettle?": the agent on the command line."""

from __future__ import annotations

import sys

from agent.support import answer


def main() -> int:
    """Prints the answer to the question that the arguments are."""
    if len(sys.argv) < 2:
        print("usage: python -m agent QUESTION", file=sys.stderr)
        return 2
    print(answer(" ".join(sys.argv[1:])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
