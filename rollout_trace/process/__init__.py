"""Whole processes: recording under every client, in every thread, and in the Python programs that they start.

Public: ``rt.instrument``, ``rt.child_environment``, and the type of the handle, ``Instrumentation``. The modules are
internal.
"""

from __future__ import annotations

from rollout_trace._lazy import lazy_names

TYPE_CHECKING = False  # Not from `typing`: importing that takes longer than this.
if TYPE_CHECKING:
    from rollout_trace.process.instrument import Instrumentation as Instrumentation

_HOMES = {
    "rollout_trace.process.instrument": ("Instrumentation",),
}
if not TYPE_CHECKING:  # A type checker takes any name for one of a module that has a `__getattr__`.
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)

__all__ = sorted(name for names in _HOMES.values() for name in names)
