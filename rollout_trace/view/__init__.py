"""What people look at: trajectories in a terminal, on a page and in a notebook.

Public: ``Trajectory.show()``, the pictures of notebooks, and the commands. The modules are internal.
"""
