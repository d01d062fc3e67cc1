"""Texts of tokens in the file: what they cost, and what does not fit."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_trace import JSONLWriter, read
from rollout_trace.data.lists import PackedTexts, from_plain
from rollout_trace.data.model import Completion, Step, shared
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.file.decode import decode
from rollout_trace.file.encode import encode
from rollout_trace.file.line_format import BadLine
from rollout_trace.wire import decode as decode_exchange
from tests.fuzz.run import corpus
from tests.strategies import texts

KINDS = st.lists(texts | st.sampled_from(["", "a", "\x7f", "\ud83d", "é"]), max_size=6)


def step(token_texts: Any, count: int | None = None, **fields: Any) -> Step:
    ids = np.arange(len(token_texts) if count is None else count, dtype=np.int32)
    return Step(id="a", call_id="a", completion_token_ids=ids, token_texts=token_texts, **fields)


@given(KINDS)
def test_any_texts_come_back(given_: list[str]) -> None:
    packed = PackedTexts.of(given_)
    assert (packed.get(), len(packed), packed.joined()) == (given_, len(given_), "".join(given_))
    assert pickle.loads(pickle.dumps(packed)).get() == given_
    plain = packed.plain()
    assert (plain is None) == (not given_ or any("\x7f" in one for one in given_))
    assert plain is None or from_plain(plain).get() == given_
    made = step(given_)
    assert decode(encode(Trajectory(steps=[made]))).steps[0].token_texts == given_
    assert pickle.loads(pickle.dumps(made)) == made
    assert made != replace(made, token_texts=None)


def test_a_step_keeps_them_as_one_object_and_shows_a_list() -> None:
    made = step(["a", "b"])
    assert isinstance(shared(made, "token_texts"), PackedTexts)
    assert made.token_texts == ["a", "b"]
    with pytest.raises(TypeError, match="cannot be changed"):
        made.token_texts.append("c")
    with pytest.raises(AttributeError, match="recorded fact"):
        made.token_texts = []


@pytest.mark.parametrize("wrong", ["ab", b"ab", 7, [1, 2], ["a", None]])
def test_what_is_no_list_of_texts_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="token_texts: expected a list of texts, one for each completion token, got"):
        step(wrong, 2)


def test_another_number_of_texts_than_of_tokens_is_not_written() -> None:
    for bad in (step(["a", "b"], 3), Step(id="a", call_id="a", logprobs=[-1.0], token_texts=["a", "b"])):  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"step a has [13] completion tokens and 2 token_texts"):
            encode(Trajectory(steps=[bad]))


@pytest.mark.parametrize(
    ("value", "message"),
    {
        "too few": ("a", r"\$\.steps\[0\]\.tokens\.texts: expected 2 texts \(end - prompt\), got 1"),
        "too many": (["a", "b", "c"], r"tokens\.texts: expected 2 texts \(end - prompt\), got 3"),
        "none": ([], r"tokens\.texts: expected 2 texts \(end - prompt\), got 0"),
        "numbers": ([1, 2], r"\$\.steps\[0\]\.tokens\.texts\[0\]: expected str, got int"),
        "a number": (7, r"\$\.steps\[0\]\.tokens\.texts: expected str \| array, got int"),
    }.values(),
)
def test_a_line_with_other_texts_is_damaged(value: Any, message: str) -> None:
    line = json.loads(encode(Trajectory(steps=[step(["a", "b"])])))
    line["steps"][0]["tokens"]["texts"] = value
    with pytest.raises(BadLine, match=message):
        decode(json.dumps(line).encode())


def test_texts_without_ids_and_logprobs_are_read() -> None:
    """A line of another writer: nothing says how many there should be."""
    line = json.loads(encode(Trajectory(steps=[step(["a", "b"])])))
    line["steps"][0]["tokens"] = {"texts": "a\x7fb\x7fc"}
    assert decode(json.dumps(line).encode()).steps[0].token_texts == ["a", "b", "c"]


def recorded_lines() -> list[bytes]:
    """A line of each recorded exchange whose engine sent texts and ids."""
    found = []
    for protocol, one in corpus():
        steps = decode_exchange(
            protocol, one.request, one.response, content_type=one.content_type, status=one.status or 0
        )
        if any(step.token_texts is not None and step.completion_token_ids is not None for step in steps):
            found.append(encode(Trajectory(steps=steps)))
    return found


def test_they_cost_no_more_than_the_ids_in_the_file() -> None:
    """Of the recorded exchanges together. Each token costs its text and one byte."""
    lines = recorded_lines()
    spelled = ids = 0
    for line in map(json.loads, lines):
        tokens = [step["tokens"]["texts"] for step in line["steps"] if "texts" in step.get("tokens", ())]
        spelled += sum(len(json.dumps(one, ensure_ascii=False).encode()) for one in tokens)
        ids += sum(len(json.dumps(segment["ids"], separators=(",", ":"))) for segment in line["segments"])
        for one in tokens:
            separators = one.count("\x7f")
            assert (
                len(json.dumps(one, ensure_ascii=False))
                == len(json.dumps(one.replace("\x7f", ""), ensure_ascii=False)) + separators
            )
    assert len(lines) > 100
    assert spelled <= ids


def test_they_take_no_objects_in_memory(tmp_path: Path) -> None:
    """1,000 calls of 2,500 tokens: 10 bytes a token at most, read or recorded."""
    words = ["The", " quick", " brown", " f", "ox", " jumps", ",", "\n"]
    tokens = [words[at % len(words)] for at in range(2_500)]
    path = tmp_path / "a.jsonl"
    with JSONLWriter(path) as out:
        out.write(Trajectory(steps=[Step(id=f"{at}", call_id=f"{at}", token_texts=tokens) for at in range(100)]))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        found = list(read(path))
        kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert found[0].steps[99].token_texts == tokens
    assert kept <= 100 * 2_500 * 10


class Bytes:
    """A tokenizer for which each byte is a token."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(text.encode())


def test_they_go_when_ids_are_made_from_the_text() -> None:
    """They are aligned to the tokens that were sampled, not to those of another tokenizer."""
    sampled: dict[str, Any] = {"logprobs": [-1.0, -0.5], "token_texts": ["f", "ine"]}
    asked: dict[str, Any] = {"protocol": "openai.completions", "messages": ["hi"]}
    answered = Step(id="a", call_id="a", completion=Completion(content="fine"), **asked, **sampled)
    trajectory = Trajectory(steps=[answered])
    assert trajectory.retokenize(Bytes()).retokenized == ["a"]
    assert (answered.token_texts, answered.logprobs) == (None, None)
    assert answered.completion_token_ids is not None
    assert answered.completion_token_ids.tolist() == list(b"fine")
