"""Messages of every protocol in the shape of OpenAI's chat messages.

Internal: users import what is in here from ``rollout_trace``.
"""
