"""Recording of calls made by SDK clients and HTTP clients: one file per kind of client, and the recorder they share.

Internal: users import what is in here from ``rollout_trace``.
"""
