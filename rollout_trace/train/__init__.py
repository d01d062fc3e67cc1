"""Trajectories for training: sequences, drift, checks, groups, advantages, ids made from text.

Internal: users import what is in here from ``rollout_trace``.
"""
