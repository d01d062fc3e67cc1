#!/usr/bin/env bash
# numpy 2.4.6: the quick way to read a list of token ids from text changes those that do not fit, and says nothing.
#
# Expected: `numpy.fromstring(text, dtype=numpy.int32, sep=",")` raises for a number beyond int32, as `numpy.array` does
# with the same number, and as `fromstring` itself does for text that is no number.
# Real: 3000000000 becomes -1294967296, and a number of twenty digits becomes -1; as int64 it becomes the greatest int64.
# With warnings as errors too.
# Seen on 2026-11-29:
#   array       OverflowError
#   no number   ValueError
#   int32       [-1294967296, 7] [-1, 7]
#   int64       [3000000000, 7] [9223372036854775807, 7]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check numpy==2.4.6
"$folder/env/bin/python" -W error - <<'PY'
import numpy as np


def error_of(action):
    try:
        return action()
    except Exception as error:
        return type(error).__name__


def ids(text, dtype):
    return np.fromstring(text, dtype=dtype, sep=",").tolist()


TEXTS = ("3000000000,7", "99999999999999999999,7")
array = error_of(lambda: np.array([3_000_000_000, 7], dtype=np.int32))
no_number = error_of(lambda: ids("x,7", np.int32))
small, large = ([ids(text, dtype) for text in TEXTS] for dtype in (np.int32, np.int64))
print("array      ", array)
print("no number  ", no_number)
print("int32      ", *small)
print("int64      ", *large)
assert (array, no_number) == ("OverflowError", "ValueError"), "it has changed"
assert small == [[-1294967296, 7], [-1, 7]], "it has changed"
assert large == [[3_000_000_000, 7], [2**63 - 1, 7]], "it has changed"
PY
