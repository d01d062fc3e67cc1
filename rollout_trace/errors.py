"""What rollout_trace raises of its own."""

# RolloutTraceError
#   FormatError (also ValueError)   a file holds something that is not what the format says
#   WriteError (also OSError)       trajectories could not be written
#   DriftError (also ValueError)    a prompt repeats an earlier completion in other token ids
#   ExportError (also ValueError)   an export would have to leave something out

from __future__ import annotations


class RolloutTraceError(Exception):
    """Base of every error of this library."""


class FormatError(RolloutTraceError, ValueError):
    """A file holds something that the format does not allow. The message names file, line, path, expected and found."""


class WriteError(RolloutTraceError, OSError):
    """Trajectories could not be written; they are still in memory."""


class DriftError(RolloutTraceError, ValueError):
    """A prompt repeats an earlier completion in other ids. The message names both steps, the place and the kind."""


class ExportError(RolloutTraceError, ValueError):
    """A strict export would have to leave something out. The message says what and where."""
