"""Profiles of the inference engines, and the detection of the engine behind an address.

Internal, save ``Engine`` and ``EngineName``, the types of ``engine=``.
"""

from rollout_trace.engines.engine import Engine
from rollout_trace.engines.profiles import EngineName

__all__ = ["Engine", "EngineName"]
