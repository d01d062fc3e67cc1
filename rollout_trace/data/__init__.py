"""Data types: steps, trajectories, token segments, shared lists, costs. No recording, no I/O.

Internal: users import what is in here from ``rollout_trace``.
"""
