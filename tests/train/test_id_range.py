"""Token ids in range: ids that prompts share are looked at once, and the answer is that of looking at each."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rollout_trace as rt
from rollout_trace.data.model import new_step
from rollout_trace.data.tokens import TokenStore
from rollout_trace.train.checks import InRange, check

IDS = st.lists(st.sampled_from([0, 1, 2, 3, -1, 9]), max_size=4)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 12), IDS, IDS), max_size=6), st.sampled_from([None, 3, 10]))
def test_it_is_the_same_as_looking_at_each_span(turns: list[tuple[bool, int, list[int], list[int]]], size: int) -> None:
    store, in_range = TokenStore(), InRange(size)
    whole = np.empty(0, np.int32)
    for goes_on, kept, read, said in turns:
        before = whole if goes_on else whole[:kept]
        prompt = np.concatenate([before, np.array(read, np.int32)])
        asked, answered = store.add(prompt, np.array(said, np.int32))
        whole = np.concatenate([prompt, np.array(said, np.int32)])
        prompt_sound = bool(((prompt >= 0) & (prompt < (size or 2**31))).all())
        said_sound = all(0 <= one < (size or 2**31) for one in said)
        assert in_range(asked) == prompt_sound
        # False may be due to the prompt: then the ids themselves are looked at.
        assert in_range(answered) == (prompt_sound and said_sound) or (not said and not prompt_sound)


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_each_step_whose_prompt_has_a_bad_id_has_its_finding(bad: int) -> None:
    store, whole, steps = TokenStore(), np.empty(0, np.int32), []
    for turn in range(3):
        prompt = np.concatenate([whole, np.array([1, -5 if turn == bad else 2], np.int32)])
        asked, answered = store.add(prompt, np.array([3], np.int32))
        whole = np.concatenate([prompt, np.array([3], np.int32)])
        facts = {"id": f"{turn}", "call_id": f"{turn}", "index": turn, "token_source": "engine"}
        steps.append(new_step({**facts, "prompt_token_ids": asked, "completion_token_ids": answered}))
    found = [(one.step_id, one.position) for one in check(rt.Trajectory(steps=steps)) if one.code == "ids_out_of_range"]
    assert found == [(str(turn), 3 * bad + 1) for turn in range(bad, 3)]
