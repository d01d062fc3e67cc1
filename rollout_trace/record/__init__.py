"""Recording of a run: calls, their assignment to trajectories, framework frames, and the files they are written to."""
