"""Many rollouts: an agent runs over tasks, each run recorded in a trajectory of its own.

Public: ``rt.collect``, ``rt.acollect`` and the types that they take and return. The modules are internal.
"""
