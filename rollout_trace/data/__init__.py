"""Data types: steps, trajectories, token segments, shared lists, costs. No recording, no I/O."""
