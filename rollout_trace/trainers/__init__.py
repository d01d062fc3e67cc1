"""Adapters: an agent, recorded, where a trainer takes its rollouts from.

Public: the modules that have a trainer's name. ``feed``, ``id_server`` and ``served`` are internal.
"""
