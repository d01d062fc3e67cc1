"""What is new of a request and of an answer is written; what is recovered has all of its bytes."""

from __future__ import annotations

import gzip
import random
from pathlib import Path
from typing import Any
from zlib import crc32

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rollout_trace as rt
from rollout_trace.clients import recorder
from rollout_trace.file import journal as form
from rollout_trace.record import call as call_module
from rollout_trace.record import journal_texts
from rollout_trace.record.journal import Journal
from rollout_trace.record.recovered import Pieces
from rollout_trace.record.settings import Settings

from .conversations import Conversations, chat, stream, words
from .journaled import died, files_of, journaled

SEEDS = st.integers(0, 2**32)


def call_with(request: bytes, pieces: list[bytes], headers: dict[str, str]) -> str:
    """Records one call, whose answer comes in these pieces; returns its id."""
    call = recorder.begin(Settings(lambda method, path: None), "openai.chat")
    assert call is not None
    recorder.attempt(call, request)
    recorder.answered(call, 200, headers)
    for piece in pieces:
        recorder.receive(call, piece)
    recorder.ended(call)
    return call.id


def cut(own: random.Random, data: bytes) -> list[bytes]:
    """The bytes in pieces."""
    ends = sorted(own.randrange(len(data) + 1) for _ in range(own.choice((0, 1, 20))))
    return [data[start:end] for start, end in zip([0, *ends], [*ends, len(data)], strict=True)]


def bodies_in(output: Path) -> dict[str, tuple[bytes | None, bytes]]:
    """Request and answer of each call in the journals of an output."""
    records = [
        one for file in files_of(output) for one in form.records(file.read_bytes()) if isinstance(one, form.Record)
    ]
    found: dict[str, tuple[bytes | None, bytes]] = {}
    pieces = Pieces("", records)
    for record, texts in journal_texts.texts_of(pieces.of(form.CALL, form.PART)):
        request, answer = found.get(record.head["call"], (None, b""))
        assert texts[1] is not None
        assert record.head["from"] == len(answer)
        found[record.head["call"]] = (texts[0] if "difference" in record.head else request, answer + texts[1])
    return found


@given(SEEDS, st.booleans())
def test_every_byte_is_recovered(tmp_path_factory: pytest.TempPathFactory, seed: int, in_parts: bool) -> None:
    """Agents that take turns, branches, changed prompts, any layout, answers in any pieces, written at once or not."""
    output = tmp_path_factory.mktemp("texts") / "out.jsonl"
    journal, expected = Journal(output), {}
    conversations = Conversations(seed)
    with pytest.MonkeyPatch.context() as patch, journaled(journal):
        patch.setattr(call_module, "JOURNAL_SECONDS", 0.0 if in_parts else 1e9)
        for _ in range(conversations.own.choice((2, 6, 25))):
            request, answer = conversations.turn()
            pieces = cut(conversations.own, answer)
            expected[call_with(request, pieces, {"content-type": "text/event-stream"})] = (request, answer)
        died(journal)
    assert bodies_in(output) == expected


@pytest.mark.parametrize("layout", [chat, stream])
def test_the_journal_grows_with_what_is_new(layout: Any, tmp_path: Path) -> None:
    """Three agents take turns; one sends its prompts as ids, behind its messages."""
    journal, own = Journal(tmp_path / "out.jsonl"), random.Random(1)
    agents = [([1], list[str]()) for _ in range(3)]
    new = 0
    with journaled(journal):
        for turn in range(60):
            prompt, messages = agents[turn % 3]
            read, sampled = ([own.randrange(150_000) for _ in range(count)] for count in (400, 40))
            prompt += read
            messages.append("x" * 500)
            ids = orjson.dumps(prompt).decode() if turn % 3 == 0 else "[]"
            request = f'{{"messages":{orjson.dumps(messages).decode()},"prompt_token_ids":{ids},"model":"m"}}'
            answer = layout(own, prompt, sampled, "")
            call_with(request.encode(), [answer.encode()], {})
            new += 500 + len(answer) - len(layout(own, prompt, [], "")) + len(str(read)) * (2 if turn % 3 == 0 else 1)
            prompt += sampled
        died(journal)
    (file,) = files_of(tmp_path / "out.jsonl")
    assert file.stat().st_size < 1.5 * new + 60 * 1500


def test_answers_without_ids_and_compressed_ones_are_no_bases() -> None:
    """They repeat nothing: to look for it, and to keep them, would be in vain."""
    bases, own = journal_texts.Bases(), random.Random(3)
    texts = words(own, [], [1] * 9000, "").encode(), gzip.compress(chat(own, [5] * 30, [6] * 3000, "").encode(), 1)
    for text in texts:
        assert bases.difference(text, journal_texts.ANSWER) == journal_texts.Part(text, arrays=[])


def test_branches_do_not_take_each_others_place() -> None:
    bases, own = journal_texts.Bases(), random.Random(4)
    shared = [own.randrange(150_000) for _ in range(4000)]
    branches = [shared + [own.randrange(150_000) for _ in range(3000)] for _ in range(3)]
    sizes = []
    for number in range(12):
        branch = branches[number % 3]
        text = chat(own, branch, [], "").encode()
        part = bases.difference(text, journal_texts.ANSWER)
        bases.add(number, text, part, journal_texts.ANSWER)
        sizes.append(len(part.middle))
        branch += [own.randrange(150_000) for _ in range(20)]
    assert all(size < 1000 for size in sizes[3:])


@pytest.fixture
def two_answers(tmp_path: Path) -> Path:
    """A journal with an answer, and one that is a difference of it."""
    output, own = tmp_path / "out.jsonl", random.Random(5)
    journal, prompt = Journal(output), [own.randrange(150_000) for _ in range(3000)]
    with journaled(journal):
        for number in range(2):
            answer = chat(own, [*prompt, number], [8, 9], "")
            call_with(b'{"model": "m"}', [answer.encode()], {"content-type": "application/json"})
        died(journal)
    return output


def test_a_damaged_answer_costs_those_that_are_differences_of_it(two_answers: Path) -> None:
    (file,) = files_of(two_answers)
    data = file.read_bytes()
    first = next(one for one in form.records(data) if isinstance(one, form.Record) and one.kind == form.CALL)
    at = first.offset + 3000
    file.write_bytes(data[:at] + b"y" + data[at + 1 :])
    recovered = rt.recover(two_answers)
    (found,) = recovered
    (step,) = found.steps
    assert (step.completion_token_ids, step.prompt_token_ids) == (None, None)
    assert step.token_issue is not None
    assert step.token_issue.code == "recorder_failed"
    assert f"the response of call {step.call_id} cannot be restored" in str(recovered.report)


def test_the_sum_of_the_second_format_is_read(two_answers: Path) -> None:
    """It is that of the text as it is; that of the third begins with the first copy."""
    (file,) = files_of(two_answers)
    expected, whole = bodies_in(two_answers), b""
    for one in form.records(file.read_bytes()):
        assert isinstance(one, form.Record)
        if one.head.get("repeats"):
            before = one.head["repeats"][3]
            one.head["repeats"][3] = crc32(expected[one.head["call"]][1])
            assert one.head["repeats"][3] != before
        whole += b"".join(form.pack(one.kind, orjson.dumps(one.head), [bytes(blob) for blob in one.blobs]))
    file.write_bytes(whole)
    assert bodies_in(two_answers) == expected


@pytest.mark.parametrize("change", [(3, 1), (5, 7), (6, -7), (4, 10**6), (1, 10**7)])
def test_another_text_than_was_written_is_damage(change: tuple[int, int], two_answers: Path) -> None:
    """Its checksum tells: a wrong place in the right base gives ids too, but not those of the answer."""
    (file,) = files_of(two_answers)
    place, by = change
    changed = b""
    for one in form.records(file.read_bytes()):
        assert isinstance(one, form.Record)
        if one.head.get("repeats"):
            one.head["repeats"][place] += by
        changed += b"".join(form.pack(one.kind, orjson.dumps(one.head), [bytes(blob) for blob in one.blobs]))
    file.write_bytes(changed)
    recovered = rt.recover(two_answers)
    (found,) = recovered
    first, second = found.steps
    assert first.token_issue is None
    assert first.completion_token_ids is not None
    assert list(first.completion_token_ids) == [8, 9]
    assert (second.completion_token_ids, second.prompt_token_ids) == (None, None)
    assert second.token_issue is not None
    assert second.token_issue.code == "recorder_failed"
    assert f"the response of call {second.call_id} cannot be restored" in str(recovered.report)
