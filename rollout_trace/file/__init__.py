"""Trajectories as JSON lines: ``JSONLWriter`` appends them, ``read`` reads them. See docs/file-format.md.

Internal: users import what is in here from ``rollout_trace``.
"""

from rollout_trace.file.reader import read
from rollout_trace.file.writer import JSONLWriter

__all__ = ["JSONLWriter", "read"]
