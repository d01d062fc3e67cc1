"""Trajectories as JSON lines: ``JSONLWriter`` appends them, ``read`` reads them. See docs/file-format.md."""

from rollout_trace.file.reader import read
from rollout_trace.file.writer import JSONLWriter

__all__ = ["JSONLWriter", "read"]
