"""Runs tests by name, and writes the name of each that passed to a file as soon as it has. Started by ``grading.py``.

    python -I report_tests.py FILE NAME...

The code under test runs in this process, and can be written to deceive it. Code that ends the process, or shadows a
module of the standard library, makes no test pass.
"""

from __future__ import annotations

import os
import sys
import unittest
from typing import TextIO


class Passed(unittest.TestResult):
    """Writes what passes."""

    def __init__(self, file: TextIO) -> None:
        super().__init__()
        self._file = file

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        print(test.id(), file=self._file, flush=True)

    def addError(self, test: unittest.TestCase, error: object) -> None:
        super().addError(test, error)  # type: ignore[arg-type]  # as unittest gives it
        print(self.errors[-1][1])

    def addFailure(self, test: unittest.TestCase, error: object) -> None:
        super().addFailure(test, error)  # type: ignore[arg-type]
        print(self.failures[-1][1])


def main() -> None:
    _, path, *names = sys.argv
    del sys.argv[1:]
    with open(path, "w") as file:
        # After what is needed here is imported.
        sys.path.insert(0, os.getcwd())
        unittest.defaultTestLoader.loadTestsFromNames(names).run(Passed(file))


if __name__ == "__main__":
    main()
