"""Test calls to an endpoint, and a report of what it serves.

Internal: users import what is in here from ``rollout_trace``.
"""
