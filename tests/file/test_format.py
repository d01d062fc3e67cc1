"""The bytes of the file: its schema, its size, and that what was written once stays readable."""

from __future__ import annotations

import base64
import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollout_trace import JSONLWriter, read
from rollout_trace.data.exact_turn import ExactTurn
from rollout_trace.data.exchange import Exchange
from rollout_trace.data.extras import ExtraIssue, JSONText, PolicySpan, SamplingMask, TopTokenRows, TopTokens
from rollout_trace.data.model import (
    Attempt,
    Completion,
    Cost,
    ErrorInfo,
    Step,
    Task,
    TokenIssue,
    ToolCall,
    ToolRun,
    Usage,
)
from rollout_trace.data.rows import RowStore
from rollout_trace.data.tokens import TokenStore
from rollout_trace.data.trainer_tokens import TRAINER_VALUES
from rollout_trace.data.trajectory import ForkedFrom, Trajectory
from rollout_trace.file import records as schema
from rollout_trace.file.decode import decode
from rollout_trace.file.encode import encode

FIXTURE = Path(__file__).parent / "data" / "rollout-trace-1.jsonl"
EXTRAS = FIXTURE.with_name("rollout-trace-1-extras.jsonl")
"""The fields that were added later: what engines send beside ids and logprobs."""
TEXTS = FIXTURE.with_name("rollout-trace-1-texts.jsonl")
"""Added after those: the texts of tokens."""
EXCHANGES = FIXTURE.with_name("rollout-trace-1-exchanges.jsonl")
EXACT = FIXTURE.with_name("rollout-trace-1-exact-turns.jsonl")
FORK = FIXTURE.with_name("rollout-trace-1-fork.jsonl")
"""Added after those: a cassette."""


def test_the_schema_in_the_package_is_that_of_the_records() -> None:
    """If not: python -m rollout_trace.file.records"""
    assert schema.PATH.read_text(encoding="utf-8") == schema.text(schema.schema())
    assert schema.NOTE_PATH.read_text(encoding="utf-8") == schema.text(schema.note_schema())


def test_the_schema_names_no_host() -> None:
    assert schema.schema()["$id"] == "urn:rollout-trace:1"
    assert schema.note_schema()["$id"] == "urn:rollout-trace-note:1"


def at(second: int) -> datetime:
    return datetime(2026, 11, 21, 0, 31, second, 123456, tzinfo=timezone.utc)


def full_trajectory() -> Trajectory:
    """One that fills every field. What the fixture holds; do not change one without the other."""
    asked: list[Any] = [{"role": "user", "content": "2 + 2?"}]
    tools = [{"type": "function", "function": {"name": "calculator"}}]
    error = ErrorInfo(type="RateLimitError", message="slow down", code="rate_limit", status=429)
    store = TokenStore()
    first = store.add(np.array([5, 6, 7], np.int32), np.array([8, 9], np.int32))
    second = store.add(np.array([5, 6, 7, 8, 9, 10, 11], np.int32), np.array([12], np.int32))
    fork = store.add(np.array([5, 6, 99], np.int32), None)
    steps = [
        Step(
            id="c1.0",
            call_id="c1",
            agent="solver",
            protocol="openai.chat",
            engine="vllm",
            model="m",
            response_model="m-1",
            response_id="chatcmpl-1",
            messages=asked,
            tools=tools,
            sampling={"temperature": 0.7, "seed": 17},
            completion=Completion(
                reasoning="I should calculate.",
                tool_calls=(ToolCall(id="call_1", name="calculator", arguments='{"a": 2, "b": 2}', extra={"x": 1}),),
                refusal="no",
                extra={"audio": {"id": "a"}},
            ),
            prompt_token_ids=first[0],  # type: ignore[arg-type]
            completion_token_ids=first[1],  # type: ignore[arg-type]
            logprobs=[-0.5, -0.25],  # type: ignore[arg-type]
            top_logprobs=[[{"token": "a", "logprob": -0.5}], []],
            token_source="engine",
            logprobs_mode="raw",
            finish_reason="tool_calls",
            stop_reason=128009,
            usage=Usage(input=3, output=2, cache_read=1, cache_write=0, reasoning=1, extra={"audio_tokens": 0}),
            cost=Cost(amount=0.001, currency="USD", source="table"),
            started_at=at(30),
            latency=1.234567891,
            time_to_first_token=0.1,
            attempts=(
                Attempt(started_at=at(30), duration=0.5, status=429, error=error, request_id="r1"),
                Attempt(started_at=at(31), duration=0.25, status=200, content_type="application/json"),
            ),
            reward=0.5,
            advantage=[0.1, -0.2],
            trainable=False,
            policy_version="step-17",
            metadata={"note": "naïve 🐍", "cut": "\ud83d"},
            request_bytes=b'{"model": "m"}',
            response_bytes=b"\xff\x00",
        ),
        Step(
            id="c2.0",
            call_id="c2",
            index=1,
            messages=[*asked, {"role": "tool", "content": "4"}, {"role": "user", "content": "?"}],
            tools=[],
            completion=Completion(content="4"),
            prompt_token_ids=second[0],  # type: ignore[arg-type]
            completion_token_ids=second[1],  # type: ignore[arg-type]
            stop_reason="</s>",
            advantage=0.25,
            policy_version=17,
        ),
        Step(
            id="c3.1",
            call_id="c3",
            choice=1,
            index=2,
            prompt_token_ids=fork[0],  # type: ignore[arg-type]
            token_issue=TokenIssue(code="ids_missing", message="the server sent no completion token ids."),
            status="error",
            error=error,
        ),
        Step(id="c4.0", call_id="c4", index=3, completion_token_ids=[21], logprobs=[-1.0]),  # type: ignore[arg-type]
    ]
    return Trajectory(
        id="t1",
        name="solver",
        episode_id="e1",
        parent_id="t0",
        parent_step_id="c0.0",
        group_id="gsm8k/17",
        rollout_index=3,
        task=Task(id="gsm8k/17", data={"question": "2 + 2?"}),
        steps=steps,
        tool_runs=[
            ToolRun(
                tool_call_id="call_1",
                name="calculator",
                arguments={"a": 2, "b": 2},
                result="4",
                error=ErrorInfo(type="ZeroDivisionError", message="division by zero"),
                started_at=at(32),
                duration=0.0008,
                step_id="c1.0",
            )
        ],
        reward=1.0,
        rewards={"exact": 1.0, "format": 0.5},
        metrics={"turns": 2},
        status="failed",
        stop_reason="max_turns",
        error=ErrorInfo(type="RuntimeError", message="gave up"),
        started_at=at(30),
        ended_at=at(33),
        environment={"rollout_trace": "0.1.0"},
        metadata={"seed": 17, "large": 2**70},
    )


def test_a_file_of_this_version_stays_readable() -> None:
    """Written once by version 1 of the format, and never again."""
    full, bare = read(FIXTURE)
    assert full == full_trajectory()
    assert bare == Trajectory(id="t2")


def test_what_is_written_now_is_what_was_written_then() -> None:
    assert encode(full_trajectory()) + encode(Trajectory(id="t2")) == FIXTURE.read_bytes()


def with_extras() -> Trajectory:
    """Two turns with every extra. What its fixture holds; do not change one without the other."""
    tokens, rows = TokenStore(), RowStore()
    row = np.arange(100, 130, dtype=np.int32)
    scores = np.append(np.float32(np.nan), -np.arange(1, 30, dtype=np.float32) / 8).astype(np.float32)
    best = np.stack([row, row + 30], axis=1)
    experts = np.arange(30 * 2 * 2, dtype=np.uint8).reshape(30, 2, 2)
    steps = []
    for at, (prompt, end) in enumerate([(20, 22), (28, 29)]):
        length = end - prompt
        ids = tokens.add(row[:prompt], row[prompt:end])
        top = rows.add("top ids", best[:prompt]), rows.add("top logprobs", best[:prompt].astype(np.float32))
        counts = np.array([2, 1][:length], np.int32)
        steps.append(
            Step(
                id=f"c{at}.0",
                call_id=f"c{at}",
                index=at,
                prompt_token_ids=ids[0],  # type: ignore[arg-type]
                completion_token_ids=ids[1],  # type: ignore[arg-type]
                top_logprobs=JSONText(b'[[{"token": "a","logprob":-0.50}],[]]'),  # type: ignore[arg-type]
                prompt_logprobs=rows.add("scores", scores[:prompt]),  # type: ignore[arg-type]
                prompt_top_tokens=TopTokenRows(*top),  # type: ignore[arg-type]
                top_tokens=TopTokens(best[prompt:end], scores[prompt:end, None] * np.ones(2, np.float32)),
                sampling_mask=SamplingMask(
                    np.arange(counts.sum(), dtype=np.int32) + 120, counts, -np.arange(counts.sum(), dtype=np.float32)
                ),
                routed_experts=rows.add("experts", experts[: end - 1]),  # type: ignore[arg-type]
                policy_spans=(PolicySpan(0, 1, "step-7"), PolicySpan(1, 2, 8))[:length],
                extra={"system_fingerprint": "vllm-0.32.0", "metrics": {"queue_time_ms": 0.5}},
                extra_issues=(ExtraIssue(field="routed_experts", code="malformed", message="no array of .npy"),) * at,
            )
        )
    return Trajectory(id="t3", episode_id="t3", steps=steps, environment={})


def test_a_file_with_extras_stays_readable() -> None:
    """Written once by the first version that had them, and never again."""
    (found,) = read(EXTRAS)
    assert found == with_extras()
    assert encode(with_extras()) == EXTRAS.read_bytes()
    assert encode(found) == EXTRAS.read_bytes()


def with_texts() -> Trajectory:
    """Texts of every form. What their fixture holds; do not change one without the other."""
    spelled: dict[str, Any] = {
        "usual": ["The", " pa", "", "ï", "\n"],
        "with U+007F": ["a\x7f", "b"],
        "half a surrogate pair": ["\ud83d", "x"],
        "one, empty": [""],
        "none": [],
        "unknown": None,
    }
    tokens, steps = TokenStore(), []
    for at, (name, texts) in enumerate(spelled.items()):
        sampled = np.arange(50, 50 + len(texts or ()), dtype=np.int32)
        prompt, completion = tokens.add(np.array([5, 6], np.int32), sampled)
        ids: dict[str, Any] = {"prompt_token_ids": prompt, "completion_token_ids": completion}
        steps.append(Step(id=f"{name}.0", call_id=name, index=at, token_texts=texts, **ids))
    # Of a hosted model: logprobs, and no ids.
    hosted = np.array([-0.5, -1], np.float32)
    steps.append(Step(id="hosted.0", call_id="hosted", index=6, logprobs=hosted, token_texts=["4", "."]))
    return Trajectory(id="t4", episode_id="t4", steps=steps, environment={})


def test_a_file_with_texts_stays_readable() -> None:
    """Written once by the first version that had them, and never again."""
    (found,) = read(TEXTS)
    assert found == with_texts()
    assert encode(with_texts()) == TEXTS.read_bytes()
    assert encode(found) == TEXTS.read_bytes()
    texts = [step.get("tokens", {}).get("texts") for step in json.loads(TEXTS.read_text(encoding="utf-8"))["steps"]]
    usual = "The\x7f pa\x7f\x7fï\x7f\n"
    assert texts == [usual, ["a\x7f", "b"], "\ud83d\x7fx", "", [], None, "4\x7f."]


def with_exchanges() -> Trajectory:
    """Exchanges of every outcome. What their fixture holds; do not change one without the other."""
    asked = '{"messages":[{"role":"user","content":"Wie heißt 数?"}%s],"model":"m","stream":true}'
    first, second = (
        asked % more for more in ("", ',{"role":"assistant","content":"数"},{"role":"user","content":"?"}')
    )
    events = ['data: {"choices":[{"delta":{"content":"数"}}]}\n\n'.encode(), b"data: [DONE]\n\n"]
    chat: dict[str, Any] = {
        "method": "POST",
        "path": "/v1/chat/completions",
        "request_content_type": "application/json",
        "protocol": "openai.chat",
    }
    streamed: dict[str, Any] = {
        **chat,
        "status": 200,
        "headers": (("content-type", "text/event-stream"), ("transfer-encoding", "chunked")),
    }
    found = (
        Exchange("1", "GET", "/v1/models?limit=2", b"", 200, (("content-type", "application/json"),), b"{}", (2,)),
        Exchange(
            name="2",
            **{**chat, "status": 429, "headers": (("retry-after", "0"),)},
            request=first.encode(),
            response=b'{"error":{"message":"slow down"}}',
            chunk_sizes=(33,),
            chunk_times=(0.0125,),
            call_id="c1",
            started_at=at(30),
            duration=0.012678901,
        ),
        Exchange(
            name="3",
            **streamed,
            request=first.encode(),
            response=b"".join(events),
            # The first piece ends inside a character.
            chunk_sizes=(40, len(b"".join(events)) - 40),
            chunk_times=(0.25, 0.300001),
            call_id="c1",
            started_at=at(31),
            duration=0.300001,
        ),
        Exchange(name="4", **streamed, request=second.encode(), response=events[0], chunk_sizes=(len(events[0]),),
                 call_id="c2", outcome="cut"),
        Exchange(name="5", **streamed, request=second.encode(), response=events[0], chunk_sizes=(len(events[0]), 0),
                 call_id="c2", outcome="closed"),
        Exchange(name="6", **chat, status=None, headers=(), request=second.encode(), response=b"", chunk_sizes=(),
                 call_id="c3", outcome="unreachable"),
        Exchange("7", "POST", "/v1/audio/transcriptions", b"RIFF\xff\x00", 200, (), b"\xff\xfe", (1, 1), "audio/wav"),
    )  # fmt: skip
    steps = [Step(id=f"c{n}.0", call_id=f"c{n}", index=n - 1, protocol="openai.chat") for n in (1, 2, 3)]
    metadata = {"test": "test_agent.py::test_it"}
    return Trajectory(id="t5", episode_id="t5", steps=steps, environment={}, metadata=metadata, exchanges=found)


def test_a_cassette_stays_readable() -> None:
    """Written once by the first version that had them, and never again."""
    (found,) = read(EXCHANGES)
    assert found == with_exchanges()
    assert encode(with_exchanges()) == EXCHANGES.read_bytes()
    assert encode(found) == EXCHANGES.read_bytes()
    line = json.loads(EXCHANGES.read_text(encoding="utf-8"))
    requests = [one["request"] for one in line["exchanges"]]
    assert requests[2] == {"from": [1, len(found.exchanges[1].request), 0], "text": ""}
    assert requests[3]["text"] == ',{"role":"assistant","content":"数"},{"role":"user","content":"?"}'


def test_files_before_that_have_no_exchanges() -> None:
    found = [one for path in (FIXTURE, EXTRAS, TEXTS) for one in read(path)]
    assert len(found) == 4
    assert all(one.exchanges == () for one in found)
    assert all(b'"exchanges"' not in path.read_bytes() for path in (FIXTURE, EXTRAS, TEXTS))


def test_files_before_that_have_no_texts() -> None:
    steps = [step for path in (FIXTURE, EXTRAS) for one in read(path) for step in one.steps]
    assert steps
    assert all(step.token_texts is None for step in steps)


def test_arrays_of_a_line_hold_each_row_once() -> None:
    line = json.loads(EXTRAS.read_text(encoding="utf-8"))
    shapes = [(one["dtype"], one["shape"]) for one in line["arrays"]]
    assert shapes == [("uint8", [28, 2, 2]), ("float32", [28]), ("int32", [28, 2]), ("float32", [28, 2])]
    assert base64.b64decode(line["arrays"][0]["data"]) == bytes(range(112))
    first, second = (step["tokens"] for step in line["steps"])
    assert (first["routed_experts"], second["routed_experts"]) == ([[0, 0, 21]], [[0, 0, 28]])
    assert (first["prompt_logprobs"], second["prompt_logprobs"]) == ([[1, 0, 20]], [[1, 0, 28]])
    assert second["prompt_top_tokens"] == {"ids": [[2, 0, 28]], "logprobs": [[3, 0, 28]]}
    assert first["policy_spans"] == [[0, 1, "step-7"], [1, 2, 8]]


def with_exact_turns() -> Trajectory:
    """A turn as ids, one as text, and one that was served other ids. What its fixture holds."""
    turns = [
        None,
        ExactTurn(step_id="c0.0", n_ids=71, n_requests=4, seconds=0.0125),
        ExactTurn(reason="history_changed", detail="message 2 is not as it was recorded.", message=2),
        ExactTurn(step_id="c1.0", n_ids=71, reason="not_served", detail="71 ids were sent, 73 served.", n_requests=1),
    ]
    steps = [Step(id=f"c{at}.0", call_id=f"c{at}", index=at, exact_turn=turn) for at, turn in enumerate(turns)]
    return Trajectory(id="t5", episode_id="t5", steps=steps, environment={})


def test_a_file_with_exact_turns_stays_readable() -> None:
    """Written once by the first version that had them, and never again."""
    (found,) = read(EXACT)
    assert found == with_exact_turns()
    assert encode(with_exact_turns()) == EXACT.read_bytes()


def with_a_fork() -> Trajectory:
    """A run that went on from another, with what a trainer computed. What its fixture holds."""
    ids: dict[str, Any] = {"prompt_token_ids": [1, 2], "completion_token_ids": [3, 4], "token_source": "engine"}
    step = Step(id="f0.0", call_id="f0", status="cached", **ids)
    for at, name in enumerate(TRAINER_VALUES):
        setattr(step, name, [-0.5 * at, -0.25])
    origin = ForkedFrom(id="t5", step=1, difference="call 2 of 3 differs")
    return Trajectory(id="t6", episode_id="t6", steps=[step], environment={}, forked_from=origin)


def test_a_file_with_a_fork_stays_readable() -> None:
    """Written once by the first version that had them, and never again."""
    (found,) = read(FORK)
    assert found == with_a_fork()
    assert encode(with_a_fork()) == FORK.read_bytes()


def test_the_fixtures_fill_every_field() -> None:
    line = json.loads(FIXTURE.read_text(encoding="utf-8").splitlines()[0])
    extras = json.loads(EXTRAS.read_text(encoding="utf-8"))
    texts = json.loads(TEXTS.read_text(encoding="utf-8"))
    definitions = schema.schema()["$defs"]
    # What media looks like is in test_media.py.
    cassette = json.loads(EXCHANGES.read_text(encoding="utf-8"))
    assert set().union(*cassette["exchanges"]) == set(definitions["ExchangeRecord"]["properties"])
    assert set().union(*(one["request"] for one in cassette["exchanges"])) == set(
        definitions["RequestRecord"]["properties"]
    )
    fork = json.loads(FORK.read_text(encoding="utf-8"))
    assert set(line) | set(extras) | set(cassette) | set(fork) == set(definitions["TrajectoryRecord"]["properties"]) - {
        "media"
    }
    exact = json.loads(EXACT.read_text(encoding="utf-8"))
    steps = set().union(*line["steps"], *extras["steps"], *exact["steps"], *fork["steps"])
    assert set(fork["steps"][0]["trainer"]) == set(definitions["TrainerRecord"]["properties"])
    assert set(fork["forked_from"]) == set(definitions["ForkedFrom"]["properties"])
    files = (line, extras, texts)
    tokens = set().union(*(step["tokens"] for one in files for step in one["steps"] if "tokens" in step))
    assert tokens == set(definitions["TokensRecord"]["properties"])
    assert set(extras["steps"][0]["tokens"]["sampling_mask"]) == set(definitions["MaskRecord"]["properties"])
    # A position that is the step's own is left out.
    assert steps == set(definitions["StepRecord"]["properties"]) - {"index"}
    turns = [step["exact_turn"] for step in exact["steps"] if "exact_turn" in step]
    assert set().union(*turns) == set(definitions["ExactTurn"]["properties"])
    assert set(line["tool_runs"][0]) == set(definitions["ToolRunRecord"]["properties"])
    assert set(line["steps"][0]["usage"]) == set(definitions["Usage"]["properties"])


def test_segments_and_tables_hold_each_thing_once() -> None:
    line = json.loads(FIXTURE.read_text(encoding="utf-8").splitlines()[0])
    assert line["segments"] == [
        {"ids": [5, 6, 7, 8, 9, 10, 11, 12]},
        {"from": [0, 2], "ids": [99]},
        {"ids": [21]},
    ]
    assert [step["messages"] for step in line["steps"] if "messages" in step] == [[0], [[0, 3]]]
    assert [step.get("tools") for step in line["steps"]] == [[0], [], None, None]
    assert line["steps"][1]["tokens"] == {"segment": 0, "prompt": 7, "end": 8}


def conversation(turns: int, *, live: bool) -> Trajectory:
    """A prompt that grows by 500 ids a turn; 20 of them the completion."""
    generator, store = np.random.default_rng(turns), TokenStore()
    row, steps, messages = np.empty(0, np.int32), [], []
    for turn in range(turns):
        row = np.append(row, generator.integers(0, 150_000, 480).astype(np.int32))
        answer = generator.integers(0, 150_000, 20).astype(np.int32)
        messages.append({"role": "user", "content": "continue" if turn % 2 else f"question {turn}"})
        ids = store.add(row, answer) if live else (row, answer)
        steps.append(
            Step(
                id=f"c{turn}.0",
                call_id=f"c{turn}",
                index=turn,
                messages=list(messages),
                prompt_token_ids=ids[0],  # type: ignore[arg-type]
                completion_token_ids=ids[1],  # type: ignore[arg-type]
            )
        )
        messages.append({"role": "assistant", "content": "ok" if turn % 3 else f"answer {turn}"})
        row = np.append(row, answer)
    return Trajectory(steps=steps)


@pytest.mark.parametrize("live", [True, False])
def test_a_long_conversation_costs_what_is_new_in_each_turn(live: bool) -> None:
    trajectory = conversation(100, live=live)
    last = trajectory.steps[-1]
    assert last.prompt_token_ids is not None
    assert last.completion_token_ids is not None
    distinct = len(json.dumps([*last.prompt_token_ids.tolist(), *last.completion_token_ids.tolist()]))
    line = encode(trajectory)
    assert len(json.dumps(json.loads(line)["segments"])) < 1.01 * distinct
    assert len(line) < 1.2 * distinct
    assert len(encode(conversation(200, live=live))) < 2.05 * len(line)
    assert decode(line) == trajectory


def test_repeated_short_messages_do_not_make_long_conversations_quadratic() -> None:
    """Each repeat would break the run of indices, in every later step anew."""

    def size(turns: int) -> int:
        messages = [{"role": "user", "content": "continue"}, {"role": "assistant", "content": "ok"}] * turns
        steps = [Step(id=str(n), call_id=str(n), messages=messages[: 2 * n]) for n in range(turns)]
        line = encode(Trajectory(id="t", steps=steps))
        assert decode(line).steps[-1].messages == messages[: 2 * turns - 2]
        return len(line)

    assert size(400) - size(300) < 1.1 * (size(300) - size(200))


def test_a_file_is_written_without_what_is_not_used(tmp_path: Path) -> None:
    trajectory = conversation(50, live=True)
    with JSONLWriter(tmp_path / "rollouts.jsonl") as out:
        out.write(Trajectory(steps=trajectory.steps[:2]))
    line = json.loads((tmp_path / "rollouts.jsonl").read_bytes())
    assert sum(len(segment["ids"]) for segment in line["segments"]) == 1000
    assert len(line["messages"]) == 3


def test_a_file_of_another_writer_is_read_as_ours_is() -> None:
    """Its segments repeat, chain and overlap, its rows are in other runs, and its fields in another order."""
    (trajectory,) = read(FIXTURE.with_name("other-writer.jsonl"))
    a, b, c, d, e, f, g, h = trajectory.steps
    assert [step.messages for step in (a, b)] == [[user_one, two], [user_one, two, user_one, "four"]]
    assert c.messages == [user_one, "four", "five", "five", "five", user_one, two, user_one, "four", "five"]
    assert a.tools == [{"type": "function"}] * 2
    rows = [
        [ids if ids is None else ids.tolist() for ids in (s.prompt_token_ids, s.completion_token_ids)]
        for s in (a, b, c, d, e, f, g, h)
    ]
    assert rows == [
        [[5, 6], [7]],
        [[5, 6, 7, 8], [9]],
        [[5, 6, 7, 8, 9], [10, 11]],
        [[5, 6, 7, 8, 9, 10, 11], [12]],
        [[5, 6], [99]],
        [None, [5, 6]],
        [[], []],
        [[5, 6, 7], None],
    ]
    found = trajectory.sequences()
    assert [(row.token_ids.tolist(), row.step_ids) for row in found] == [
        ([5, 6, 7, 8, 9, 10, 11, 12], ("a", "b", "c", "d")),
        ([5, 6, 99], ("e",)),
    ]
    line = json.loads(encode(trajectory))
    assert line["segments"] == [
        {"ids": [5, 6, 7, 8, 9, 10, 11, 12]},
        {"from": [0, 2], "ids": [99]},
        {"ids": []},
    ]
    assert len(line["messages"]) == 5
    assert decode(encode(trajectory)) == trajectory


user_one, two = {"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}
