"""Pack a folder of recorded exchanges into one file: `python pack_wire.py FOLDER OUT.jsonl.xz [PATTERN ...]`.

Request headers are dropped, save content-type. Patterns are of names, as in a shell; without any, all are packed.
For vLLM: chat_* tools_* multiturn_* err_* json_schema completions_* oai_chat_*
"""

from __future__ import annotations

import argparse
from fnmatch import fnmatchcase
from pathlib import Path

from rollout_trace.testing.recordings import load_exchanges, load_reports, pack_exchanges


def main() -> None:
    parser = argparse.ArgumentParser(description="Pack a folder of recorded exchanges into one file.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("patterns", nargs="*", default=["*"])
    arguments = parser.parse_args()

    def wanted(name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in arguments.patterns)

    exchanges = [exchange for exchange in load_exchanges(arguments.folder, complete=False) if wanted(exchange.name)]
    reports = {name: report for name, report in load_reports(arguments.folder).items() if wanted(name)}
    pack_exchanges(exchanges, arguments.out, reports)
    size = arguments.out.stat().st_size
    print(f"{len(exchanges)} exchanges and {len(reports)} reports: {size:,} bytes in {arguments.out}")


if __name__ == "__main__":
    main()
