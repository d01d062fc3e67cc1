"""Extras in the file: arrays bit for bit, rows stored once, and lines that no writer of ours would write."""

from __future__ import annotations

import base64
import copy
import json
import pickle
import tracemalloc
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import rollout_trace as rt
from rollout_trace import credentials
from rollout_trace.data.extras import EXTRAS, ExtraIssue, JSONText, PolicySpan, SamplingMask, TopTokens
from rollout_trace.data.model import Completion, Step, shared
from rollout_trace.data.rows import RowSpan, RowStore
from rollout_trace.data.tokens import TokenStore
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.file.decode import decode
from rollout_trace.file.encode import PARTS, encode, from_parts, in_parts
from rollout_trace.file.line_format import BadLine
from rollout_trace.file.merge import merge
from tests.file.test_format import with_extras

LAYERS, K = 4, 2


def conversation(turns: int, *, live: bool, new: int = 200) -> Trajectory:
    """Turns whose prompts extend each other, each with experts and scores of its whole prompt, as engines send them."""
    generator, tokens, rows = np.random.default_rng(turns), TokenStore(), RowStore()
    length = turns * new
    ids = generator.integers(0, 1000, length).astype(np.int32)
    experts = generator.integers(0, 60, (length, LAYERS, K)).astype(np.uint8)
    scores = -generator.random(length, np.float32)
    best = generator.integers(0, 1000, (length, 3)).astype(np.int32)
    steps = []
    for turn in range(turns):
        prompt, end = turn * new + new - 20, (turn + 1) * new
        fields: dict[str, Any] = {
            "prompt_token_ids": ids[:prompt],
            "completion_token_ids": ids[prompt:end],
            "routed_experts": experts[: end - 1].copy(),
            "prompt_logprobs": scores[:prompt].copy(),
            "prompt_top_tokens": TopTokens(best[:prompt].copy(), best[:prompt].astype(np.float32)),
        }
        if live:
            spans = tokens.add(fields["prompt_token_ids"], fields["completion_token_ids"])
            fields |= {"prompt_token_ids": spans[0], "completion_token_ids": spans[1]}
            fields |= {name: rows.add(name, fields[name]) for name in ("routed_experts", "prompt_logprobs")}
        steps.append(Step(id=f"c{turn}.0", call_id=f"c{turn}", index=turn, **fields))
    return Trajectory(id="t", episode_id="t", environment={}, steps=steps)


@pytest.mark.parametrize("live", [True, False], ids=["shared", "by-hand"])
def test_a_conversation_costs_what_is_new_in_each_turn(live: bool) -> None:
    """Each answer has the rows of the whole prompt; the file has each row once."""
    line = encode(conversation(20, live=live))
    arrays = json.loads(line)["arrays"]
    assert [one["shape"] for one in arrays] == [[3999, LAYERS, K], [3980], [3980, 3], [3980, 3]]
    assert len(encode(conversation(40, live=live))) < 2.02 * len(line)
    assert decode(line) == conversation(20, live=live)


@pytest.mark.parametrize("live", [True, False], ids=["shared", "by-hand"])
def test_a_file_that_is_read_is_written_again_as_it_was(live: bool) -> None:
    line = encode(conversation(5, live=live))
    assert encode(decode(line)) == line
    assert encode(pickle.loads(pickle.dumps(decode(line)))) == line
    assert encode(copy.deepcopy(decode(line))) == line


def test_only_the_rows_that_steps_use_are_written() -> None:
    """Of blocks that other steps share too."""
    steps = conversation(10, live=True).steps
    part = Trajectory(id="t", steps=[steps[1], steps[3]])
    line = encode(part)
    assert [one["shape"][0] for one in json.loads(line)["arrays"]] == [799, 780, 780, 780]
    assert decode(line) == part
    # The end alone: what is before it is cut off.
    experts = steps[3].routed_experts
    assert experts is not None
    whole = RowStore().add("experts", experts)
    tail = replace(steps[3], routed_experts=RowSpan(tuple(whole.part(700, 799))))  # type: ignore[arg-type]
    line = encode(Trajectory(id="t", steps=[tail]))
    assert json.loads(line)["arrays"][0]["shape"] == [99, LAYERS, K]
    assert json.loads(line)["steps"][0]["tokens"]["routed_experts"] == [[0, 0, 99]]
    (back,) = decode(line).steps
    assert back.routed_experts is not None
    assert back.routed_experts.tobytes() == experts[700:].tobytes()


def test_steps_that_are_read_share_their_rows() -> None:
    steps = decode(encode(conversation(10, live=False))).steps
    for name in ("routed_experts", "prompt_logprobs"):
        first, last = getattr(steps[0], name), getattr(steps[-1], name)
        assert np.shares_memory(first, last)
        assert not last.flags.writeable
    first, last = steps[0].prompt_top_tokens, steps[-1].prompt_top_tokens
    assert first is not None
    assert last is not None
    assert np.shares_memory(first.ids, last.ids)


def test_reading_takes_the_memory_of_the_arrays() -> None:
    """Not of their text, nor of a copy for each step."""
    line = encode(conversation(30, live=True, new=1000))
    arrays = json.loads(line)["arrays"]
    plain = 4 * 30_000 + sum(len(base64.b64decode(one["data"])) for one in arrays)
    decode(line)
    tracemalloc.start()
    kept = decode(line)
    grown = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(kept.steps) == 30
    assert grown < 1.2 * plain


def test_every_float32_and_every_type_of_experts_is_read_as_it_was_written() -> None:
    bits = np.random.default_rng(3).integers(0, 2**32, 30_000, np.uint32)
    bits[:4] = [0x7FC00000, 0xFF800000, 0x00000001, 0x80000000]
    floats = bits.view(np.float32)
    for dtype in (np.uint8, np.uint16, np.int32):
        experts = np.arange(240, dtype=dtype).reshape(30, 4, 2)
        step = Step(
            id="a",
            call_id="a",
            routed_experts=experts[::-1],
            prompt_logprobs=floats,
            top_tokens=TopTokens(bits.view(np.int32).reshape(-1, 3), floats.reshape(-1, 3)),
        )
        (back,) = decode(encode(Trajectory(steps=[step]))).steps
        assert back.routed_experts is not None
        assert back.routed_experts.dtype == dtype
        assert back.routed_experts.tobytes() == np.ascontiguousarray(experts[::-1]).tobytes()
        assert back.prompt_logprobs is not None
        assert back.prompt_logprobs.tobytes() == floats.tobytes()
        assert back.top_tokens is not None
        assert back.top_tokens.logprobs.tobytes() == floats.tobytes()


def test_arrays_set_by_hand_may_have_other_types() -> None:
    """Lists, and numpy's usual types, become those of the format; a number that they cannot hold is refused."""
    top: Any = TopTokens([[1, -1]], [[-0.5, float("nan")]])  # type: ignore[arg-type]
    mask: Any = SamplingMask(np.array([7, 8]), np.array([2]), None)
    step = Step(id="a", call_id="a", top_tokens=top, sampling_mask=mask, prompt_top_tokens=top)
    (back,) = decode(encode(Trajectory(steps=[step]))).steps
    for found in (back.top_tokens, back.prompt_top_tokens):
        assert found is not None
        assert found.ids.dtype == np.int32
        assert found.ids.tolist() == [[1, -1]]
        assert found.logprobs.dtype == np.float32
    assert back.sampling_mask is not None
    assert [one.tolist() for one in back.sampling_mask] == [[7, 8]]
    bad: Any = SamplingMask(np.array([2**31]), np.array([1]), None)
    with pytest.raises(
        ValueError, match=r"sampling_mask.ids: expected int32, got int64 with values that it cannot hold"
    ):
        encode(Trajectory(steps=[replace(step, sampling_mask=bad)]))


IDS: dict[str, Any] = {"prompt_token_ids": [1, 2, 3], "completion_token_ids": [4, 5]}
ONE = np.zeros((1, 2), np.int32)
UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "experts": ({"routed_experts": np.zeros((6, 1, 1), np.uint8)}, "at most 5 positions, .*, got 6"),
    "scores": ({"prompt_logprobs": [-0.5]}, "expected 3 positions, the tokens of the prompt, got 1"),
    "prompt-top": ({"prompt_top_tokens": TopTokens(ONE, ONE.astype(np.float32))}, "expected 3 positions, .*, got 1"),
    "top": ({"top_tokens": TopTokens(ONE, ONE.astype(np.float32))}, "expected 2 positions, .* completion, got 1"),
    "top-shapes": ({"top_tokens": TopTokens(ONE, ONE[:, :1].astype(np.float32))}, r"got \[1, 2\] and \[1, 1\]"),
    "mask": ({"sampling_mask": SamplingMask(ONE[0], np.array([1, 0], np.int32))}, "expected 1 ids, .*, got 2"),
    "mask-length": ({"sampling_mask": SamplingMask(ONE[0], np.array([2], np.int32))}, "expected 2 positions"),
    "mask-negative": ({"sampling_mask": SamplingMask(ONE[0], np.array([3, -1], np.int32))}, "got -1"),
    "spans": ({"policy_spans": (PolicySpan(0, 3, "a"),)}, r"end <= 2 of the completion, got \[0, 3\]"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_could_not_be_read_back_is_not_written(name: str) -> None:
    fields, message = UNFIT[name]
    with pytest.raises(ValueError, match=rf"step a: \w+: .*{message}.*replace\(step"):
        encode(Trajectory(steps=[Step(id="a", call_id="a", **IDS, **fields)]))


def test_extras_do_not_need_ids() -> None:
    """They may have been withheld since."""
    for step in with_extras().steps:
        bare = replace(step, prompt_token_ids=None, completion_token_ids=None)
        assert decode(encode(Trajectory(id="t", steps=[bare]))).steps == [replace(bare, index=bare.index)]


# Lines of others


def array(dtype: str, shape: list[Any], data: Any = b"") -> dict[str, Any]:
    text = data if isinstance(data, str) else base64.b64encode(bytes(data)).decode()
    return {"dtype": dtype, "shape": shape, "data": text}


def line(arrays: list[Any], **tokens: Any) -> bytes:
    segments = [{"ids": [1, 2, 3, 4, 5]}]
    steps = [{"id": "a", "tokens": {"segment": 0, "prompt": 3, "end": 5, **tokens}}]
    record = {"schema": "rollout-trace/1", "id": "t", "segments": segments, "steps": steps, "arrays": arrays}
    return json.dumps(record).encode()


EXPERTS = array("uint8", [5, 2, 1], range(10))
SCORES = array("float32", [3], bytes(12))
WIDE = array("float32", [2, 2], bytes(16))
TOP = array("int32", [2, 1], bytes(8))
BAD: dict[str, tuple[bytes, str]] = {
    "dtype": (
        line([array("float16", [1], bytes(2))]),
        r"\$\.arrays\[0\]: expected one of the dtypes float32, int32, uint16, uint8, got 'float16': a newer version",
    ),
    "length": (line([array("int32", [2], bytes(4))]), r"arrays\[0\]: expected 8 bytes \(int32, shape \[2\]\), got 4"),
    "huge": (line([array("uint8", [2**31 - 1] * 3)]), "expected .* bytes .*, got 0"),
    "larger": (line([array("uint8", [2**40, 0])]), "at most 3 numbers from 0 to 2147483647"),
    "axes": (line([array("uint8", [1, 1, 1, 1], b"a")]), "at most 3 numbers"),
    "no-axis": (line([array("uint8", [], b"a")]), "begins with a number of rows"),
    "negative": (line([array("uint8", [-1, -1], b"a")]), r"arrays\[0\]\.shape"),
    "base64": (line([array("uint8", [1], "a?")]), r"arrays\[0\]\.data: invalid base64"),
    "no-table": (line([], routed_experts=[[0, 0, 1]]), r"tokens\.routed_experts: .* has 0 arrays, got \[0, 0, 1\]"),
    "outside": (line([EXPERTS], routed_experts=[[0, 0, 6]]), r"array 0 has 5, got \[0, 0, 6\]"),
    "backwards": (line([EXPERTS], routed_experts=[[0, 3, 2]]), r"got \[0, 3, 2\]"),
    "below": (line([EXPERTS], routed_experts=[[-1, 0, 1]]), r"got \[-1, 0, 1\]"),
    "no-run": (line([EXPERTS], routed_experts=[]), "at least one run"),
    "short-run": (line([EXPERTS], routed_experts=[[0, 1]]), r"routed_experts\[0\]"),
    "too-many": (line([EXPERTS], routed_experts=[[0, 0, 5], [0, 0, 1]]), "at most 5 positions, .*, got 6"),
    "kind": (line([SCORES], routed_experts=[[0, 0, 1]]), r"uint8 or uint16 or int32 \[positions, .*got float32"),
    "two-kinds": (
        line([EXPERTS, array("uint8", [1, 3, 1], b"abc")], routed_experts=[[0, 0, 1], [1, 0, 1]]),
        r"one dtype and shape, got uint8 \[2, 1\] and uint8 \[3, 1\]",
    ),
    "scores": (line([SCORES], prompt_logprobs=[[0, 0, 2]]), r"tokens\.prompt_logprobs: expected 3 positions"),
    "prompt-top": (
        line([TOP, WIDE], prompt_top_tokens={"ids": [[0, 0, 2]], "logprobs": [[1, 0, 2]]}),
        r"prompt_top_tokens: expected ids and logprobs of one shape",
    ),
    "top": (line([], top_tokens={"ids": TOP, "logprobs": array("float32", [1, 1], bytes(4))}), "and .1, 1."),
    "top-kind": (line([], top_tokens={"ids": EXPERTS, "logprobs": SCORES}), r"top_tokens\.ids: expected .* int32"),
    "mask": (
        line([], sampling_mask={"ids": array("int32", [1], bytes(4)), "counts": array("int32", [2], bytes(8))}),
        r"sampling_mask: expected 0 ids, the sum of counts, got 1",
    ),
    "spans": (line([], policy_spans=[[0, 3, "a"]]), r"tokens\.policy_spans: .* got \[0, 3\]"),
    "span": (line([], policy_spans=[[0, 3]]), r"policy_spans\[0\]"),
    "alternatives": (line([], top_logprobs={"a": 1}), r"tokens\.top_logprobs: expected a list, got \{"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_line_with_bad_arrays_names_the_place(name: str) -> None:
    data, message = BAD[name]
    with pytest.raises(BadLine, match=message):
        decode(data)


def test_a_line_of_another_writer() -> None:
    """Runs repeat and go backwards, arrays are not used, and alternatives have any whitespace."""
    data = line(
        [SCORES, EXPERTS],
        routed_experts=[[1, 3, 5], [1, 0, 0], [1, 0, 2], [1, 4, 5]],
        prompt_logprobs=[[0, 2, 2], [0, 0, 1], [0, 0, 2]],
        top_logprobs=[[{"token": "é"}], []],
    )
    (step,) = decode(data).steps
    assert step.routed_experts is not None
    assert step.routed_experts.reshape(-1).tolist() == [6, 7, 8, 9, 0, 1, 2, 3, 8, 9]
    assert step.prompt_logprobs is not None
    assert step.prompt_logprobs.tolist() == [0, 0, 0]
    assert step.top_logprobs == [[{"token": "é"}], []]
    again = encode(decode(data))
    assert decode(again) == decode(data)
    assert encode(decode(again)) == again


def test_reading_does_not_multiply_rows() -> None:
    """A short line whose runs repeat one large row costs no more than the line, until the array is asked for."""
    runs = [[0, 0, 1]] * 5
    data = line([array("uint8", [1, 1000, 1000], bytes(1_000_000))], routed_experts=runs)
    decode(data)
    tracemalloc.start()
    kept = decode(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(shared(kept.steps[0], "routed_experts")) == 5
    assert peak < 1_200_000


# Alternatives


def test_alternatives_are_bytes_on_the_way() -> None:
    """Written as the engine sent them, and read without being decoded."""
    sent = b'[[{"token": "a", "logprob": -0.50, "bytes": [97]}],\n []]'
    step = Step(id="a", call_id="a", top_logprobs=JSONText(sent))  # type: ignore[arg-type]
    data = encode(Trajectory(id="t", steps=[step]))
    assert data.count(b"\n") == 1
    (back,) = decode(data).steps
    held = shared(back, "top_logprobs")
    assert isinstance(held, JSONText)
    assert held.data == sent.replace(b"\n", b" ")
    assert back.top_logprobs == [[{"token": "a", "logprob": -0.5, "bytes": [97]}], []]


def test_alternatives_beside_half_a_character() -> None:
    """A line with one is read by another way, and means the same."""
    step = Step(
        id="a",
        call_id="a",
        completion=Completion(content="cut \ud83d"),
        top_logprobs=JSONText(b'[[{"token":"\\ud83d","logprob":-1e-05}]]'),  # type: ignore[arg-type]
        routed_experts=np.zeros((2, 1, 1), np.uint8),
    )
    (back,) = decode(encode(Trajectory(id="t", steps=[step]))).steps
    assert back == step
    assert back.top_logprobs == [[{"token": "\ud83d", "logprob": -1e-05}]]
    nothing = json.dumps({**json.loads(line([])), "name": "\ud83d"}).replace(
        '"end": 5', '"end": 5, "top_logprobs": null'
    )
    assert decode(nothing.encode()).steps[0].top_logprobs is None


def test_alternatives_that_are_no_json_are_written_as_what_they_mean() -> None:
    """Some servers send NaN, or half a character: the line stays JSON, and readable."""
    for sent, kept in (
        (b'[[{"logprob":NaN}]]', [[{"logprob": None}]]),
        (b'[[{"token":"\xe6"}]]', [[{"token": "\ufffd"}]]),
    ):
        step = Step(id="a", call_id="a", top_logprobs=JSONText(sent))  # type: ignore[arg-type]
        (back,) = decode(encode(Trajectory(id="t", steps=[step]))).steps
        assert back.top_logprobs == kept


def test_alternatives_that_are_no_text_are_refused() -> None:
    with pytest.raises(BadLine, match=r"tokens\.top_logprobs: .*utf-8"):
        decode(line([], top_logprobs=["?"]).replace(b"?", b"\xff"))


# The journal's parts


def test_parts_of_a_journal_repeat_the_parts_before() -> None:
    """Of each array what is new is at its end: a difference to the step before is as long as the new rows."""
    turns = [in_parts([step]) for step in conversation(3, live=True).steps]
    assert all(len(parts) == len(PARTS) + 4 for parts in turns)
    for before, after in pairwise(turns):
        for one, other in zip(before[len(PARTS) :], after[len(PARTS) :], strict=True):
            data = one.index(b'"data":"') + 8
            # Base64 has three bytes in four letters: the last ones may differ.
            end = one.index(b'"', data) - 4
            assert other.startswith(one[:end])
    steps = [decode(from_parts(parts)).steps[0] for parts in turns]
    assert [replace(step, index=at) for at, step in enumerate(steps)] == conversation(3, live=True).steps


def test_steps_without_arrays_have_the_parts_they_always_had() -> None:
    parts = in_parts([Step(id="a", call_id="a", completion_token_ids=[1])])  # type: ignore[arg-type]
    assert len(parts) == len(PARTS)
    assert decode(from_parts(parts)).steps[0].completion_token_ids is not None
    with pytest.raises(ValueError, match="expected 4 or 8 parts, got 5"):
        from_parts([*parts, b"[]"])


# Copies, merged files, keys


def test_copies_hold_the_extras() -> None:
    for step in decode(encode(with_extras())).steps:
        for other in (copy.copy(step), copy.deepcopy(step), pickle.loads(pickle.dumps(step)), replace(step)):
            assert other == step
            assert all(getattr(other, name) is not None for name in EXTRAS)
    steps = with_extras().steps
    assert replace(steps[0], routed_experts=None) != steps[0]
    assert replace(steps[0], extra_issues=()) == steps[0]
    assert replace(steps[0], extra={"system_fingerprint": "other"}) != steps[0]


def test_merged_and_annotated_files_hold_the_extras(tmp_path: Path) -> None:
    given = with_extras()
    with rt.JSONLWriter(tmp_path / "a.jsonl", media="folder") as writer:
        writer.write(given)
    large = conversation(20, live=True)
    with rt.JSONLWriter(tmp_path / "b.jsonl", media="folder") as writer:
        writer.write(large)
    assert not (tmp_path / "b.jsonl.media").exists()
    rt.annotate(tmp_path / "a.jsonl", given.id, reward=1.0)
    merge([tmp_path / "a.jsonl", tmp_path / "b.jsonl"], tmp_path / "out.jsonl")
    first, second = rt.read(tmp_path / "out.jsonl")
    assert first.steps == given.steps
    assert first.reward == 1.0
    assert second == large


def test_a_key_is_cut_out_of_extra_and_not_out_of_arrays() -> None:
    """A text of letters and digits can stand in base64 by chance: numbers are not changed for that."""
    step = Step(
        id="a",
        call_id="a",
        routed_experts=np.frombuffer(base64.b64decode("aaaa1Key2Secret3aaaa"), np.uint8).reshape(-1, 1, 1),
        extra={"note": "sent 1Key2Secret3", "1Key2Secret3": 1},
        completion_token_ids=[1],  # type: ignore[arg-type]
        extra_issues=(ExtraIssue(field="routed_experts", code="refused", message="no 1Key2Secret3 here"),),
    )
    credentials.remember("1Key2Secret3")
    try:
        (back,) = decode(encode(Trajectory(id="t", steps=[step]))).steps
    finally:
        credentials.forget_all()
    assert back.extra == {"note": "sent [redacted]", "[redacted]": 1}
    assert back.extra_issues[0].message == "no [redacted] here"
    assert back.routed_experts is not None
    assert base64.b64encode(back.routed_experts.tobytes()) == b"aaaa1Key2Secret3aaaa"
    assert back.completion_token_ids is not None


def test_the_bytes_of_a_line_are_not_kept() -> None:
    """``msgspec.Raw`` is a view of the line, which would stay in memory with it."""
    held = shared(decode(line([], top_logprobs=[])).steps[0], "top_logprobs")
    assert type(held.data) is bytes
    assert not isinstance(held.data, msgspec.Raw)
