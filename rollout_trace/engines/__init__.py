"""What each engine is asked for, and how it is found out which one answers."""

from rollout_trace.engines.profiles import EngineName

__all__ = ["EngineName"]
