"""Recording of calls made by SDK clients and HTTP clients: one file per kind of client, and the recorder they share.

Public: the type that ``rt.probe`` returns, ``ProbeReport``. The modules are internal.
"""

from __future__ import annotations

from rollout_trace._lazy import lazy_names

TYPE_CHECKING = False  # Not from `typing`: importing that takes longer than this.
if TYPE_CHECKING:
    from rollout_trace.clients.probe_report import ProbeReport as ProbeReport

_HOMES = {
    "rollout_trace.clients.probe_report": ("ProbeReport",),
}
if not TYPE_CHECKING:  # A type checker takes any name for one of a module that has a `__getattr__`.
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)

__all__ = sorted(name for names in _HOMES.values() for name in names)
