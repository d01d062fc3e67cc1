"""Whole processes: recording under every client, in every thread, and in the Python programs that they start.

Public: ``rt.instrument`` and ``rt.child_environment``. The modules are internal.
"""
