"""The texts of tokens, in every shape in which engines send them with the logprobs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from rollout_trace.data.model import Step
from rollout_trace.wire import decode
from rollout_trace.wire.lenient import NULL
from rollout_trace.wire.token_texts import packed, texts_of
from tests.wire.raw import JSON, SSE, sse
from tests.wire.recorded import recorded, steps_of

PARROT = "🦜".encode()


def entry(token: Any, data: bytes | None = None, logprob: float = -0.5, **more: Any) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, **({} if data is None else {"bytes": list(data)}), **more}


def chat(*entries: dict[str, Any], streamed: bool = False, size: int = 1, **fields: Any) -> Step:
    """A chat answer with these entries; streamed, with so many in each chunk."""
    request = b'{"model":"m","messages":[]}'
    if not streamed:
        choice = {"index": 0, "message": {"content": "x"}, "logprobs": {"content": list(entries)}, **fields}
        body = json.dumps({"choices": [{**choice, "finish_reason": "stop"}]}).encode()
        return decode("openai.chat", request, body, content_type=JSON)[0]
    parts = [entries[at : at + size] for at in range(0, len(entries), size)]
    chunks = [
        {"choices": [{"index": 0, "delta": {"content": "x"}, "logprobs": {"content": list(part)}}]} for part in parts
    ]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    return decode("openai.chat", request, sse(*chunks) + b"data: [DONE]\n\n", content_type=SSE)[0]


CHAT: dict[str, tuple[list[dict[str, Any]], list[str] | None]] = {
    "texts alone": ([entry("a"), entry(" b")], ["a", " b"]),
    "texts and their bytes": ([entry("ä", "ä".encode()), entry("", b"")], ["ä", ""]),
    "null bytes": ([entry("a", bytes=None), entry("<|im_end|>", bytes=None)], ["a", "<|im_end|>"]),
    "null bytes of one": ([entry("a", b"a"), entry("<|im_end|>", bytes=None)], ["a", "<|im_end|>"]),
    "bytes count": ([entry("Ġa", b" a"), entry("▁b", b" b")], [" a", " b"]),
    "spelled in ASCII, between others": (
        [entry(one, one.encode()) for one in "ab"]
        + [entry("<0x0A>", b"\n"), entry("\\n", b"\n"), entry("", b"x")]
        + [entry(one, one.encode()) for one in "cd"],
        ["a", "b", "\n", "\n", "x", "c", "d"],
    ),
    "bytes of one length count": ([entry("?", b"!"), entry("b", b"b")], ["!", "b"]),
    "a character in two tokens": (
        [entry("a", b"a"), entry("\ufffd", PARROT[:3]), entry("\ufffd", PARROT[3:]), entry("b", b"b")],
        ["a", "", "🦜", "b"],
    ),
    "a character of three tokens, and the next one begun": (
        [
            entry("", PARROT[:1]),
            entry("", PARROT[1:2]),
            entry("", PARROT[2:] + PARROT[:2]),
            entry("", PARROT[2:] + b"!"),
        ],
        ["", "", "🦜", "🦜!"],
    ),
    "an empty token, and bytes": ([entry("", b"ab"), entry("cd", b"cd")], ["ab", "cd"]),
    "no UTF-8": ([entry("x", b"\xff"), entry("y", b"y"), entry("z", PARROT[:2])], ["\ufffd", "y", "\ufffd"]),
    "OpenAI's spelling of bytes": (
        [entry(r"bytes:\xf0\x9f"), entry(r"bytes:\xa6\x9c"), entry("bytes: 4")],
        ["", "🦜", "bytes: 4"],
    ),
    "U+FFFD that was sampled": ([entry("\ufffd", "\ufffd".encode()), entry("\ufffd")], ["\ufffd", "\ufffd"]),
    "U+007F": ([entry("a\x7f", b"a\x7f"), entry("\x7f", b"\x7f")], ["a\x7f", "\x7f"]),
    "half a surrogate pair": ([entry("\ud83d"), entry("a")], ["\ud83d", "a"]),
    "ids as tokens": ([entry("token_id:5"), entry("token_id:6")], None),
    "ids as tokens, beside bytes": ([entry("token_id:5", b"a"), entry("token_id:6", b"b")], ["a", "b"]),
    "no text of one": ([entry("a"), {"logprob": -0.5}], None),
    "a number for a text": ([entry("a"), entry(7)], None),
    "numbers that are no bytes": ([entry("a", b"a"), entry("b", bytes=[700])], ["a", "b"]),
    "a text for bytes": ([entry("a", bytes="null"), entry("b", bytes="YQ==")], ["a", "b"]),
}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", CHAT)
def test_chat(name: str, streamed: bool) -> None:
    entries, texts = CHAT[name]
    step = chat(*entries, streamed=streamed)
    assert step.token_texts == texts
    assert step.logprobs is not None
    # Also without ids, as of a hosted model.
    assert (step.completion_token_ids is None) == ("ids as tokens" not in name)


@given(st.data())
def test_bytes_count_and_joined_they_are_the_text(data: st.DataObject) -> None:
    """However a text is cut into tokens, and however these are spelled; streamed or not, in any chunks."""
    text = data.draw(st.text("aé🦜\x7f\n\ufffd", max_size=12)).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    pieces = [text[one:other] for one, other in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    spelled = st.sampled_from(["\ufffd", "", "Ġa", "token_id:7", "bytes:\\xff", None])
    given_ = [
        entry(one.decode("utf-8", "replace") if data.draw(st.booleans()) else data.draw(spelled), one) for one in pieces
    ]
    step = chat(*given_)
    assert step.token_texts is not None
    assert "".join(step.token_texts) == text.decode()
    assert step.token_texts == packed(pieces).get()
    done = b""
    for piece, found in zip(pieces, step.token_texts, strict=True):
        done += piece
        whole = done.decode("utf-8", "ignore")
        assert whole.endswith(found)
    assert chat(*given_, streamed=True, size=data.draw(st.integers(1, 4))).token_texts == step.token_texts


@given(st.lists(st.tuples(st.text("aé\x7f", max_size=2) | st.none(), st.binary(max_size=2) | st.none()), max_size=12))
def test_the_fast_way_gives_what_each_token_by_itself_gives(items: list[tuple[str | None, bytes | None]]) -> None:
    """Where the bytes are those of the tokens, which the fast way assumes if their number and both ends agree."""
    same = [(token, None if data is None or token is None else token.encode()) for token, data in items]
    raws = [NULL if data is None else Raw(json.dumps(list(data)).encode()) for _, data in same]
    found = texts_of([token for token, _ in same], raws)
    assert found is None if any(token is None for token, _ in same) else found is not None
    assert found is None or found.get() == [token for token, _ in same]


def test_another_number_of_texts_than_of_ids_is_none() -> None:
    step = chat(entry("a", b"a"), token_ids=[1, 2])
    assert (step.token_texts, step.logprobs) == (None, None)
    assert step.token_issue is not None
    assert step.token_issue.code == "lengths_differ"
    step = chat(entry("a", b"a"), entry("b", b"b"), token_ids=[1, 2])
    assert step.token_texts == ["a", "b"]
    # Texts stay where a logprob is no number: the ids and their texts are not in doubt.
    step = chat(entry("a", b"a", logprob=0.5), token_ids=[1])
    assert (step.logprobs, step.token_texts) == (None, ["a"])


def one(protocol: str, answer: Any, request: Any = None, **more: Any) -> Step:
    body = json.dumps(answer).encode()
    return decode(protocol, json.dumps(request or {"model": "m"}).encode(), body, content_type=JSON, **more)[0]


def test_completions_have_a_list_of_them() -> None:
    def step(tokens: Any, **fields: Any) -> Step:
        logprobs = {"tokens": tokens, "token_logprobs": [-0.5, -0.25]}
        return one("openai.completions", {"choices": [{"text": "x", "logprobs": logprobs, **fields}]})

    assert step(["a", " b"]).token_texts == ["a", " b"]
    assert step(["a", " b"], token_ids=[1, 2]).token_texts == ["a", " b"]
    assert step([r"bytes:\xc3", r"bytes:\xa9"]).token_texts == ["", "é"]
    assert step(["token_id:5", "token_id:6"]).token_texts is None
    assert step(["a"]).token_texts is None
    assert step(None).token_texts is None
    entries = [entry("\ufffd", b"\xc3", id=5), entry("", b"\xa9", id=6)]
    found = one(
        "openai.completions",
        {"choices": [{"text": "é", "logprobs": {"content": entries}, "finish_reason": "stop"}],
         "usage": {"prompt_tokens": 1, "completion_tokens": 2}},
    )  # fmt: skip
    assert found.token_texts == ["", "é"]


def test_completions_in_chunks_of_two_shapes() -> None:
    """Some with bytes, some without."""
    bodies = [{"tokens": ["a"], "token_logprobs": [-1]}, {"content": [entry("?", b"b")]}, {"content": [entry("c")]}]
    chunks = [{"choices": [{"index": 0, "text": "x", "logprobs": one}]} for one in bodies]
    (step,) = decode("openai.completions", b"{}", sse(*chunks), content_type=SSE)
    assert step.token_texts == ["a", "b", "c"]


def test_an_echoed_prompt_is_no_part_of_them() -> None:
    (step,) = steps_of("openai.completions", "vllm/completions_echo")
    assert step.completion is not None
    assert isinstance(step.completion.content, str)
    assert step.token_texts is not None
    assert len(step.token_texts) == len(step.logprobs)  # type: ignore[arg-type]
    assert step.completion.content.startswith("def")
    assert step.completion.content.endswith("".join(step.token_texts))


def test_generate_has_texts_where_they_were_asked_for() -> None:
    def step(*triples: Any) -> Step:
        return one("sglang.generate", {"text": "x", "meta_info": {"output_token_logprobs": list(triples)}})

    assert step([-0.5, 5, "a"], [-0.5, 6, " b"]).token_texts == ["a", " b"]
    assert step([-0.5, 5, None], [-0.5, 6, None]).token_texts is None
    assert step([-0.5, 5], [-0.5, 6]).token_texts is None


def test_vllm_generate() -> None:
    choice = {"token_ids": [5, 6], "logprobs": {"content": [entry("token_id:5"), entry("token_id:6")]}}
    assert one("vllm.generate", {"choices": [choice]}).token_texts is None
    choice = {"token_ids": [5, 6], "logprobs": {"content": [entry("token_id:5", b"a"), entry("token_id:6", b"b")]}}
    assert one("vllm.generate", {"choices": [choice]}).token_texts == ["a", "b"]


def test_responses() -> None:
    def step(*entries: Any) -> Step:
        part = {"type": "output_text", "text": "x", "logprobs": list(entries)}
        output = [{"type": "message", "role": "assistant", "content": [part]}]
        usage = {"input_tokens": 1, "output_tokens": len(entries)}
        return one("openai.responses", {"status": "completed", "output": output, "usage": usage})

    assert step(entry("?", b"\xc3"), entry("?", b"\xa9")).token_texts == ["", "é"]
    assert step(entry("a"), entry("b")).token_texts == ["a", "b"]
    assert step(entry("a"), {"logprob": -0.5}).token_texts is None


def test_google() -> None:
    chosen = [{"token": "a", "tokenId": 5, "logProbability": -0.5}, {"token": " b", "tokenId": 6, "logProbability": -1}]
    answer = {"candidates": [{"content": {"parts": [{"text": "a b"}]}, "logprobsResult": {"chosenCandidates": chosen}}]}
    assert one("google.generate_content", answer).token_texts == ["a", " b"]


def test_ollama() -> None:
    entries = [entry("\ufffd", b"\xc3"), entry("", b"\xa9")]
    answer = {"message": {"content": "é"}, "logprobs": entries, "done": True, "eval_count": 2}
    assert one("ollama.chat", answer, {"stream": False}).token_texts == ["", "é"]
    # Tokens without a text are left out: no array of the step, and no texts of it.
    assert one("ollama.chat", {**answer, "eval_count": 3}, {"stream": False}).token_texts is None


def test_places_of_other_engines() -> None:
    together = {"token_ids": [5, 6], "tokens": ["a", "b"], "token_logprobs": [-0.5, -1]}
    step = one("openai.chat", {"choices": [{"index": 0, "message": {"content": "ab"}, "logprobs": together}]})
    assert (step.token_texts, step.completion_token_ids.tolist()) == (["a", "b"], [5, 6])  # type: ignore[union-attr]
    meta = {"output_token_logprobs": [[-0.5, 5, "a"], [-1, 6, "b"]]}
    step = one("openai.chat", {"choices": [{"index": 0, "message": {"content": "ab"}, "meta_info": meta}]})
    assert step.token_texts == ["a", "b"]


@pytest.mark.parametrize("protocol", ["openai.completions", "openai.responses"])
def test_of_every_recording_there_are_as_many_as_logprobs(protocol: str) -> None:
    found = 0
    for name in recorded(protocol):
        for step in steps_of(protocol, name):
            if step.token_texts is not None:
                assert len(step.token_texts) == len(step.logprobs if step.logprobs is not None else ())
                found += 1
    assert found
