"""Old path of the types of ``engine=``: ``Engine`` and ``EngineName``."""

from rollout_trace.wire.engine import Engine
from rollout_trace.wire.profiles import EngineName

__all__ = ["Engine", "EngineName"]
