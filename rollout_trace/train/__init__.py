"""Trajectories for training: sequences, drift, checks, groups, advantages, ids made from text."""
