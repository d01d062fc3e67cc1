"""Texts of tokens by a tokenizer: a byte-level one (that of the tiny model), and those that spell words with ▁."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers

from rollout_trace.data.model import Step
from rollout_trace.view.token_pieces import pieces_of
from rollout_trace.view.tokenizers import load_tokenizer
from rollout_trace.view.tokens import decode_texts

MODEL = Path(__file__).parent.parent / "data" / "tiny-model"
TINY = load_tokenizer(MODEL)
BACKEND = Backend.from_file(str(MODEL / "tokenizer.json"))
LAST = 2041


def whole(ids: list[int]) -> str:
    text: str = BACKEND.decode(ids, skip_special_tokens=False)
    return text


@given(st.lists(st.integers(0, LAST + 3), max_size=40))
def test_joined_they_are_the_decoded_text(ids: list[int]) -> None:
    """Of any ids, also bytes that are no UTF-8, special tokens, and ids that the tokenizer does not have."""
    texts = TINY.texts(ids)
    assert len(texts) == len(ids)
    assert "".join(texts) == whole(ids)


@given(st.text(max_size=60))
def test_of_a_text_every_token_has_its_own(text: str) -> None:
    ids = BACKEND.encode(text, add_special_tokens=False).ids
    texts = TINY.texts(ids)
    assert "".join(texts) == text.encode("utf-8", "replace").decode() or "".join(texts) == whole(ids)
    # A prefix of the ids has the same texts, save for characters that it ends inside of.
    for end in range(len(ids)):
        before = TINY.texts(ids[:end])
        assert before[:-1] == texts[: max(end - 1, 0)] or "\ufffd" in whole(ids[:end])


def test_a_character_of_several_tokens_is_in_the_last_one() -> None:
    ids = BACKEND.encode("a 🦜b", add_special_tokens=False).ids
    texts = TINY.texts(ids)
    assert "".join(texts) == "a 🦜b"
    at = next(at for at, text in enumerate(texts) if "🦜" in text)
    assert at > 0
    assert texts[at - 1] in ("", " ")
    assert "\ufffd" not in "".join(texts)


def test_special_tokens_are_shown() -> None:
    im_end = BACKEND.token_to_id("<|im_end|>")
    assert im_end is not None
    assert TINY.texts([im_end, *BACKEND.encode("hi").ids])[0] == "<|im_end|>"


def metaspace() -> Backend:
    """As SentencePiece's tokenizers are converted: ▁ begins a word, and bytes stand for what has no token."""
    bytes_ = {f"<0x{byte:02X}>": 4 + byte for byte in range(256)}
    words = ["▁", "▁Hello", "▁world", "lo", "!", "▁the", "é", "\n"]
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, "<pad>": 3, **bytes_, **{w: 260 + at for at, w in enumerate(words)}}
    backend = Backend(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<s>", "</s>"])
    return backend


def older_metaspace() -> Backend:
    backend = metaspace()
    backend.decoder = decoders.Metaspace()
    return backend


def word_pieces() -> Backend:
    words = ["[UNK]", "hello", "world", "##ing", "##s", ",", ".", "do", "not", "'", "##t", "n"]
    backend = Backend(models.WordPiece({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return backend


OTHERS = {"metaspace": metaspace(), "older metaspace": older_metaspace(), "word pieces": word_pieces()}


@pytest.fixture(scope="session", params=OTHERS)
def other(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Backend, Any]:
    backend = OTHERS[request.param]
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    backend.save(str(path))
    return backend, load_tokenizer(path)


@given(data=st.data())
def test_joined_they_are_the_text_of_other_decoders_too(other: tuple[Backend, Any], data: st.DataObject) -> None:
    backend, tokenizer = other
    ids = data.draw(st.lists(st.integers(0, backend.get_vocab_size() - 1), max_size=30))
    texts = tokenizer.texts(ids)
    assert len(texts) == len(ids)
    assert "".join(texts) == backend.decode(ids, skip_special_tokens=False)


def test_blanks_stay_at_the_words_that_they_begin(tmp_path: Path) -> None:
    metaspace().save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    ids = [1, 261, 265, 262, 260 + 6, 4 + 0xC3, 4 + 0xA9, 264, 4 + 0xE2, 264, 2]
    assert tokenizer.texts(ids) == ["<s>", " Hello", " the", " world", "é", "", "é", "!", "", "\ufffd!", "</s>"]
    assert tokenizer.texts([261, 262]) == ["Hello", " world"]


def test_time_is_linear_also_of_bytes_that_make_no_character() -> None:
    asked = 0

    def decode(ids: list[int]) -> str:
        nonlocal asked
        asked += len(ids)
        return "\ufffd" * len(ids)

    assert "".join(pieces_of([1] * 2_000, "\ufffd" * 2_000, decode)) == "\ufffd" * 2_000
    assert asked < 2_000 * 40


def test_a_decoder_that_is_not_stable_loses_no_text() -> None:
    """Nothing that it says of a part is in the whole: the last token has it all."""
    assert pieces_of([1, 2, 3], "WHOLE", lambda ids: "x" * len(ids)) == ["", "", "WHOLE"]
    assert pieces_of([], "", lambda ids: "") == []


def test_by_path_and_by_the_name_of_a_cached_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = tmp_path / "hub" / "models--someone--tiny" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    shutil.copy(MODEL / "tokenizer.json", snapshot)
    other = snapshot.with_name("older")
    other.mkdir()
    (other / "tokenizer.json").write_text("{}", encoding="utf-8")
    refs = snapshot.parent.parent / "refs"
    refs.mkdir()
    (refs / "main").write_text("abc", encoding="utf-8")
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    ids = [5, 600, 1000]
    expected = TINY.texts(ids)
    for given_ in ("someone/tiny", str(MODEL), MODEL, MODEL / "tokenizer.json"):
        tokenizer = load_tokenizer(given_)
        assert tokenizer.texts(ids) == expected
        assert tokenizer.name == str(given_)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert load_tokenizer("someone/tiny").texts(ids) == expected


def test_mistakes_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    for name in ("someone/absent", "../../nowhere/at/all", str(tmp_path / "missing" / "tokenizer.json"), "a\0b"):
        with pytest.raises(ValueError, match=r"there is no tokenizer .*Nothing is downloaded"):
            load_tokenizer(name)
    (tmp_path / "models--a--b" / "snapshots" / "c").mkdir(parents=True)
    with pytest.raises(ValueError, match="without its tokenizer, and nothing is downloaded"):
        load_tokenizer("a/b")
    broken = tmp_path / "tokenizer.json"
    for text in ("{}", "no json", json.dumps({"model": {"type": "?"}})):
        broken.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=r"tokenizer\.json cannot be read as"):
            load_tokenizer(tmp_path)
    broken.unlink()
    with pytest.raises(ValueError, match=r"has no tokenizer(\.json| that transformers)"):
        load_tokenizer(tmp_path)


WITHOUT = """
import sys
sys.modules["tokenizers"] = None
from rollout_trace.view.tokenizers import load_tokenizer
try:
    load_tokenizer(sys.argv[1])
except ImportError as error:
    print(error)
"""


def test_without_the_package_a_sentence_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT, str(MODEL)], capture_output=True, text=True, check=True)
    assert "the package tokenizers, which is not installed. Install it with: pip install tokenizers" in done.stdout


def test_the_engines_texts_come_first() -> None:
    ids = np.array([5, 600], np.int32)
    step = Step(id="a", call_id="a", completion_token_ids=ids)
    assert decode_texts(step) is None
    assert decode_texts(step, TINY) == TINY.texts([5, 600])
    spelled = Step(id="a", call_id="a", completion_token_ids=ids, token_texts=["a", "b"])
    assert decode_texts(spelled, TINY) == decode_texts(spelled) == ["a", "b"]
    assert decode_texts(Step(id="a", call_id="a"), TINY) is None
