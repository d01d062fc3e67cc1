"""Sentences of the pages are short."""

from __future__ import annotations

import pytest

from .readability import LIMIT, MEAN, Sentence, mean, of_messages, of_page, pages

SENTENCES = {path.name: of_page(path) for path in pages()}


@pytest.mark.parametrize("page", SENTENCES)
def test_no_sentence_of_a_page_is_too_long(page: str) -> None:
    long = [one for one in SENTENCES[page] if one.words > LIMIT]
    assert not long, "\n".join(f"{one.words} words: {one.text}" for one in long)


def test_their_mean_is_short() -> None:
    assert mean([one for found in SENTENCES.values() for one in found]) < MEAN
    assert mean(of_messages()) < MEAN


def test_words_are_counted() -> None:
    assert Sentence("", "The `code` of token-ids is 3.5: see `rt.read()`, or don't.").words == 10
    assert Sentence("", "").words == 0
