"""Trajectories as lines of JSON: ``JSONLWriter`` appends them, ``read`` gives them back. See docs/file-format.md."""

from rollout_trace.file.reader import read
from rollout_trace.file.writer import JSONLWriter

__all__ = ["JSONLWriter", "read"]
