"""Whether token ids are in range. Ids that prompts share are looked at once, not once for each step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_trace.data.tokens import Segment, Span

if TYPE_CHECKING:
    from rollout_trace.data.tokens import IntArray


class InRange:
    """Called with the stored ids of a step, whether they are all in range. For the steps of one trajectory.

    Args:
        vocab_size: ids from 0 to below it are in range. None: all that are not negative.
    """

    def __init__(self, vocab_size: int | None) -> None:
        self.vocab_size = vocab_size
        self._sound: dict[Segment, int] = {}
        """Segments whose ids are in range, and those of their bases, up to this position."""

    def __call__(self, stored: Any) -> bool:
        """Whether ids are in range.

        Args:
            stored: what ``shared(step, ...)`` gives. False is certain for an array; for a span it may be due to an id
                before its start. None is in range.
        """
        if stored is None:
            return True
        return self._is_sound_span(stored) if isinstance(stored, Span) else self._is_sound(stored)

    def _is_sound_span(self, span: Span) -> bool:
        segment: Segment | None = span.segment
        stop, found = span.stop, []
        while segment is not None:
            known = self._sound.get(segment)
            if known is not None and known >= stop:
                break
            begin = segment.start if known is None else known
            if stop > begin:
                if not self._is_sound(segment.own_ids[begin - segment.start : stop - segment.start]):
                    return False
                found.append((segment, stop))
            if known is not None:
                break
            stop = min(stop, segment.start)
            segment = segment.base
        # Only now: one that is not in range, in a base, is in range for none of those above it.
        self._sound.update(found)
        return True

    def _is_sound(self, ids: IntArray) -> bool:
        import numpy as np

        if not len(ids):
            return True
        # Not the methods of the array, which take half as long again.
        least = np.minimum.reduce(ids)
        return bool(least >= 0 and (self.vocab_size is None or np.maximum.reduce(ids) < self.vocab_size))
