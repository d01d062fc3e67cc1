"""Profiles of the inference engines, and the detection of the engine behind an address.

Internal, save ``EngineName``, the type of ``engine=``.
"""

from rollout_trace.engines.profiles import EngineName

__all__ = ["EngineName"]
