"""The exceptions of rollout_trace."""

# RolloutTraceError
#   FormatError (also ValueError)   a file does not match the format
#   WriteError (also OSError)       trajectories could not be written
#   DriftError (also ValueError)    a prompt repeats an earlier completion in other token ids
#   ExportError (also ValueError)   a strict export would leave something out

from __future__ import annotations


class RolloutTraceError(Exception):
    """Base of every error of this library."""


class FormatError(RolloutTraceError, ValueError):
    """A file does not match the format. The message names file, line, path in the record, expected and found."""


class WriteError(RolloutTraceError, OSError):
    """Trajectories could not be written; they are still in memory."""


class DriftError(RolloutTraceError, ValueError):
    """A prompt repeats an earlier completion in other token ids. The message names both steps, position and kind."""


class ExportError(RolloutTraceError, ValueError):
    """A strict export would leave something out. The message names what and where."""
