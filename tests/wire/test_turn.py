"""The text of ids that turns share."""

from __future__ import annotations

import json
import random

from rollout_trace.wire.turn import Ids


def ids_in(texts: list[memoryview]) -> list[int]:
    """The ids of a text in pieces."""
    found: list[int] = json.loads(b"[%b]" % b"".join(texts))
    return found


def test_turns_and_forks_have_their_own_ids_behind_those_before_them() -> None:
    source = random.Random(0)
    turns: list[tuple[Ids | None, list[int]]] = [(None, [])]
    held: list[tuple[list[memoryview], list[int]]] = []
    for _ in range(300):
        # Mostly the latest one goes on; any may be forked.
        before, known = turns[-1] if source.random() < 0.7 else source.choice(turns)
        own = [source.randrange(2**31) for _ in range(source.randint(1, 40))]
        ids = Ids(before, own)
        turns.append((ids, [*known, *own]))
        assert (ids.length, ids.last) == (len(known) + len(own), own[-1])
        # As in a request that is being sent while others go on.
        held.append((ids.texts(), turns[-1][1]))
    for one, expected in turns[1:]:
        assert one is not None
        assert ids_in(one.texts()) == expected
    for texts, expected in held:
        assert ids_in(texts) == expected


def test_a_run_is_in_one_piece_and_each_fork_has_one_more() -> None:
    first = Ids(None, [1])
    last = first
    for _ in range(20):
        last = Ids(last, [2, 3])
    assert len(last.texts()) == 1
    fork = Ids(Ids(first, [4]), [5])
    assert len(fork.texts()) == 2
    assert ids_in(fork.texts()) == [1, 4, 5]
    assert ids_in(last.texts()) == [1, *[2, 3] * 20]
