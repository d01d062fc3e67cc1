"""No hub is asked, and the user's cache is neither read nor written. Set before ``datasets`` is imported."""

from __future__ import annotations

import atexit
import os
import tempfile

_home = tempfile.TemporaryDirectory()
atexit.register(_home.cleanup)
os.environ.update(HF_HUB_OFFLINE="1", HF_HOME=_home.name)
