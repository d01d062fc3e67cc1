"""The byte tokenizer: reversible, and its template gives back the ids that were sampled."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_trace.testing import ByteTokenizer

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(TEXT)
def test_text_comes_back(text: str) -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.lists(st.sampled_from(["<|im_end|>", "<think>", "</tool_call>", "a", "é", "<"])))
def test_special_tokens_come_back_as_text(pieces: list[str]) -> None:
    tokenizer = ByteTokenizer()
    text = "".join(pieces)
    assert tokenizer.decode(tokenizer.encode(text, special=True)) == text
    assert not any(map(tokenizer.is_special, tokenizer.encode(text)))


def test_ids_below_256_are_bytes() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.encode("é!") == [0xC3, 0xA9, 0x21]
    assert tokenizer.encode("a<|im_end|>", special=True) == [ord("a"), tokenizer.eos_token_id]
    assert tokenizer.decode([0x61, tokenizer.eos_token_id], skip_special_tokens=True) == "a"


def test_words_have_ids_of_their_own_and_other_spellings_stay_possible() -> None:
    tokenizer = ByteTokenizer(words=["the", "there"])
    ids = tokenizer.encode("the there!")
    assert len(ids) == 4
    assert tokenizer.decode(ids) == tokenizer.decode(list(b"the there!")) == "the there!"
    assert max(ids) == tokenizer.vocab_size - 1


def test_an_id_outside_the_vocabulary_is_an_error() -> None:
    tokenizer = ByteTokenizer()
    with pytest.raises(ValueError, match=f"token id {tokenizer.vocab_size} is not in the vocabulary"):
        tokenizer.decode([tokenizer.vocab_size])


def test_the_template_is_chatml() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "2+2"}, {"type": "text", "text": "?"}]},
        {
            "role": "assistant",
            "content": None,
            "reasoning": "sum",
            "tool_calls": [{"function": {"name": "add", "arguments": '{"a":2, "b":2'}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "4"},
    ]
    tools = [{"type": "function", "function": {"name": "add"}}]
    text = ByteTokenizer().apply_chat_template(messages, tools, tokenize=False)
    assert text == (
        '<|im_start|>system\n# Tools\n{"type": "function", "function": {"name": "add"}}<|im_end|>\n'
        "<|im_start|>user\n2+2?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nsum\n</think>\n\n"
        '<tool_call>\n{"name": "add", "arguments": {"a":2, "b":2}\n</tool_call><|im_end|>\n'
        "<|im_start|>tool\n4<|im_end|>\n<|im_start|>assistant\n"
    )


@given(st.lists(st.tuples(st.sampled_from(["user", "system", "tool"]), TEXT)), TEXT)
def test_a_longer_conversation_extends_the_ids_of_a_shorter_one(turns: list[tuple[str, str]], last: str) -> None:
    tokenizer = ByteTokenizer()
    messages: list[dict[str, Any]] = [{"role": role, "content": content} for role, content in turns]
    shorter = tokenizer.apply_chat_template(messages, add_generation_prompt=False)
    longer = tokenizer.apply_chat_template([*messages, {"role": "user", "content": last}])
    assert longer[: len(shorter)] == shorter
