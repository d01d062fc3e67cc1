"""Adapters that let trainers take their rollouts from a recorded agent.

Public: the modules named after a trainer. ``feed``, ``id_server`` and ``served`` are internal.
"""
