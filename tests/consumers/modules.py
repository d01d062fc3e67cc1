"""Modules of trainers without what their packages import at the top: the one that reads a format, not the trainer."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path


def skip_init(*names: str, root: Path | None = None) -> None:
    """Puts empty packages in the places of these, so that their modules can be imported and their ``__init__`` is not.

    Args:
        names: of packages, the outer ones first.
        root: a folder that has them; None: they are installed.
    """
    for name in names:
        package = types.ModuleType(name)
        if root is not None:
            package.__path__ = [str(root.joinpath(*name.split(".")))]
        else:
            spec = importlib.util.find_spec(name)
            assert spec is not None, f"{name} is not installed"
            package.__spec__, package.__path__ = spec, list(spec.submodule_search_locations or ())
        sys.modules[name] = package
