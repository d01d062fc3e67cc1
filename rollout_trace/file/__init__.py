"""Trajectories as JSON lines: ``writer.JSONLWriter`` appends them, ``reader.read`` reads them. See docs/file-format.md.

Internal: users import what is in here from ``rollout_trace``.
"""
