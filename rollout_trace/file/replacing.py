"""Files that appear whole, or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A new file that replaces ``path`` when the block ends; if the block raises, ``path`` is unchanged."""
    # `os.replace` would replace a symbolic link itself: the file it points to is meant.
    place = Path(os.path.realpath(path))
    place.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, as a rename is atomic within a file system alone; cut, as names have a maximum length.
    new = place.with_name(f".{place.name[:100]}.{secrets.token_hex(8)}")
    try:
        with open(new, "xb") as file:
            yield file
            file.flush()
            # On disk before it gets its name: after a crash of the machine the file is whole or absent.
            os.fsync(file.fileno())
        os.replace(new, place)
    except BaseException:  # KeyboardInterrupt too must leave no half-written file.
        new.unlink(missing_ok=True)
        raise
