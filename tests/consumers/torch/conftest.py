"""verl's wheel has a package ``tests``, which Python takes before our folder of that name: ours is put first."""

from __future__ import annotations

from pathlib import Path

import tests

tests.__path__ = [str(Path(__file__).parents[2]), *tests.__path__]
