"""The examples that train: as modules, and as the scripts that users start.

They are found by their path: other distributions have a package ``examples`` too.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from page_blocks import blocks_of

ROOT = Path(__file__).parents[3]


def load(name: str) -> Any:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def printed(name: str, *arguments: str, options: tuple[str, ...] = ()) -> str:
    """What a run of the script, which ends well, prints. ``options`` are the interpreter's."""
    command = [sys.executable, *options, str(ROOT / "examples" / f"{name}.py"), *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def settings_of_torch() -> Iterator[None]:
    """As the scripts have it; other tests of this process get torch as they know it."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)


def assert_shown(page: str, part: str, printed: str) -> None:
    """The text block of a page that has ``part``: its lines are printed so, save their numbers and paths."""
    (shown,) = [one.text for one in blocks_of(page) if one.kind == "text" and part in one.text]
    forms = {_form(line) for line in printed.splitlines()}
    for line in shown.splitlines():
        assert line == "…" or _form(line) in forms, line


def _form(line: str) -> str:
    return " ".join(re.sub(r"\S*/\S*|[\d.e+-]+", " ", line).split())
