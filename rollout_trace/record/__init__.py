"""Recording of a run: calls, their assignment to trajectories, framework frames, and the files they are written to.

Internal: users import what is in here from ``rollout_trace``.
"""
