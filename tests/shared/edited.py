"""Changes of files that Python has compiled already."""

from __future__ import annotations

import os
from pathlib import Path


def edit(path: Path, old: str, new: str) -> None:
    """Changes a text in a source file that may have been imported.

    Compiled code is kept by its source's size and its time in whole seconds: a change of equal length within the second
    would not be seen.
    """
    text, changed = path.read_text(encoding="utf-8"), path.stat().st_mtime
    assert old in text, f"{path.name} should hold {old!r}"
    path.write_text(text.replace(old, new), encoding="utf-8")
    os.utime(path, (changed + 2, changed + 2))
