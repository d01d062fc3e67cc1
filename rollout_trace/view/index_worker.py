"""A process that builds an index, so that the one that serves the page has its time for the page."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import msgspec

from rollout_trace import guard

_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from rollout_trace.view.index_worker import main; main()"
)


class Wanted(msgspec.Struct, array_like=True):
    """What the process is to do."""

    database: str
    paths: list[str]


def start(database: Path, paths: list[str]) -> subprocess.Popen[bytes]:
    """Starts the process. It ends with its work, or when its standard input is closed."""
    import json

    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, json.dumps(sys.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    try:
        process.stdin.write(msgspec.json.encode(Wanted(_hex(str(database)), [_hex(path) for path in paths])) + b"\n")
        process.stdin.flush()
    except OSError:
        # It has ended already; its exit code and its stderr say why.
        pass
    return process


def main() -> None:
    """Does what the first line of standard input asks for. Exit code 3: asked to stop."""
    wanted = msgspec.json.Decoder(Wanted).decode(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from rollout_trace.view.index_build import Builder
    from rollout_trace.view.index_store import Store

    store = Store(Path(_text(wanted.database)))
    try:
        Builder(store).run([_text(path) for path in wanted.paths])
    except KeyboardInterrupt:
        sys.exit(3)
    except Exception as error:
        print(guard.describe(error), file=sys.stderr)
        sys.exit(1)
    finally:
        store.close()


def _end_with_parent() -> None:
    # Not through ``sys.stdin``: its lock, held by a thread, would make the interpreter's own end fail.
    while os.read(0, 1):
        pass
    # At once: the database takes back what was not committed.
    os._exit(3)


def _hex(path: str) -> str:
    """A path whose name need not be UTF-8, for JSON."""
    return os.fsencode(path).hex()


def _text(path: str) -> str:
    return os.fsdecode(bytes.fromhex(path))
