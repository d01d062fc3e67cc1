#!/usr/bin/env bash
# duckdb 2.0.0: a file of rollouts is read with rewards and logprobs rounded to whole numbers, without an error.
#
# `read_json` guesses types by the first 20,480 lines. In rollouts these may well be rewards of 0 and 1 alone.
# Expected: a later reward of 0.75 is read as 0.75, or is an error that names the line (pyarrow 26.0.1 gives 0.75).
# Real: it is read as 1, and logprobs of -0.25 and -1.5 as 0 and -2. `sample_size=-1`, which reads all lines first,
# gives what stands in the file.
# Seen on 2026-11-29:
#   guessed     [('BIGINT', 1, [0, -2])]
#   all lines   [('DOUBLE', 0.75, [-0.25, -1.5])]
#   pyarrow     0.75 [-0.25, -1.5]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check duckdb==2.0.0 pyarrow==26.0.1
"$folder/env/bin/python" - "$folder/rollouts.jsonl" <<'PY'
import json
import sys

import duckdb
import pyarrow.json

path = sys.argv[1]
with open(path, "w") as file:
    for number in range(30_000):
        file.write(json.dumps({"id": number, "reward": number % 2, "logprobs": [0, -1]}) + "\n")
    file.write(json.dumps({"id": 30_000, "reward": 0.75, "logprobs": [-0.25, -1.5]}) + "\n")


def last(options):
    query = f"SELECT typeof(reward), reward, logprobs FROM read_json('{path}'{options}) WHERE id = 30000"
    return duckdb.sql(query).fetchall()


guessed, all_lines = last(""), last(", sample_size=-1")
row = pyarrow.json.read_json(path).slice(30_000).to_pylist()[0]
print(f"guessed     {guessed}")
print(f"all lines   {all_lines}")
print(f"pyarrow     {row['reward']} {row['logprobs']}")
assert guessed == [("BIGINT", 1, [0, -2])], "it has changed"
assert all_lines == [("DOUBLE", 0.75, [-0.25, -1.5])], "it has changed"
PY
