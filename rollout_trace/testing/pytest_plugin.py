"""The pytest plugin: loaded in every pytest run of whoever has the package, so it imports next to nothing."""

from __future__ import annotations
