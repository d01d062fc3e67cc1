"""Adapters: an agent, recorded, where a trainer takes its rollouts from.

Public: the modules that have a trainer's name (``skyrl``, ``trl``, ``verl``). ``feed`` and ``id_server`` are internal.
"""
