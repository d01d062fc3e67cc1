"""Facts about programs for the mark ``replay(cli=...)``: how their requests may differ, and where they run."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

from rollout_trace.clients.loopback.programs import program_of

from . import normalize
from .matching import MatchOptions


def with_program(cli: str, ignore: tuple[str, ...], given: Callable[[Any], Any] | None, order: Any) -> MatchOptions:
    """The options of a test that runs a known program, beside those that it gives itself.

    Raises:
        ValueError: there is no program of that name.
    """
    program = program_of((), cli)
    assert program is not None
    texts = [normalize.texts(pattern, instead) for pattern, instead in program.varying]
    all_of_them = normalize.chain(*([] if given is None else [given]), *texts, normalize.dates, normalize.uuids)
    # Sub-agents run at once, and which of them asks first is the machine's choice.
    return MatchOptions((*program.ignored, *ignore), all_of_them, order or "free")


def folder_of(name: str) -> Path:
    """An empty folder for the programs of a test, at the same place in every run, with their home and their work.

    The answers in a cassette name files by their whole path, and tools are run with that again.

    Raises:
        OSError: it cannot be made.
    """
    # Not what TMPDIR says, which differs from machine to machine.
    above = Path("/tmp") if os.name == "posix" else Path(tempfile.gettempdir())
    folder = above / f"rollout-trace-{blake2b(name.encode(), digest_size=5).hexdigest()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    for inside in ("home", "work"):
        (folder / inside).mkdir()
    return folder
