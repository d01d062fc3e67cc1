"""What tests and their files are called: for commands, in cassettes' names, and in the folder of rollouts."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import pytest


def as_typed(item: pytest.Item) -> str:
    """A test's name for a command: pytest's own is of the root folder, and lacks the file if that is not in it."""
    return f"{from_here(item.config, item.path)}::{name_in_file(item)}"


def from_here(config: pytest.Config, path: Path) -> str:
    """A path from the folder that pytest was started in, not from one that the test went to."""
    try:
        return Path(os.path.relpath(path, config.invocation_params.dir)).as_posix()
    except ValueError:
        # Windows: on another drive.
        return path.as_posix()


def name_in_file(item: pytest.Item) -> str:
    """A test's name without its file."""
    return item.nodeid.partition("::")[2]


def file_name(name: str) -> str:
    """A test's name as that of a file, of at most 150 bytes."""
    safe = re.sub(r"[^\w.\[\]=,+-]+", "-", name)
    return safe.encode()[:150].decode(errors="ignore").strip("-.")


def rollout_path(item: pytest.Item) -> Path | None:
    """The file of a test's rollout, in a folder that `rt.read` and the commands take as a whole; None: none is kept."""
    folder = item.config.getoption("--rollout-dir") or item.config.getini("rollout_dir")
    if not folder:
        return None
    file, _, test = item.nodeid.partition("::")
    plain = f"{file.removesuffix('.py')}::{test}".replace("::", "-").replace("/", "-")
    name = file_name(plain)
    if name != plain or "/" in test:
        # Another test's name may have become the same.
        name += f"-{hashlib.sha256(item.nodeid.encode()).hexdigest()[:8]}"
    return Path(item.config.invocation_params.dir, folder, f"{name}.jsonl")
