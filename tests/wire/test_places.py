"""Where engines put ids: each row of the table on a literal answer, and all chat recordings of three engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollout_trace.data.model import Step
from rollout_trace.testing import Exchange, load_exchanges
from rollout_trace.wire import decode
from rollout_trace.wire.places import COMPLETION_IDS, PROMPT_IDS

DATA = Path(__file__).parents[1] / "data"
ENGINES = ("llama_server", "llama_cpp_python", "transformers_serve")
MESSAGE = {"role": "assistant", "content": "ab"}


def answer(choice: dict[str, Any], **top: Any) -> list[Step]:
    """The steps of an unstreamed answer with one choice."""
    body = {
        "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop", **choice}],
        "usage": {"completion_tokens": 2},
        **top,
    }
    return decode("openai.chat", b"{}", json.dumps(body).encode(), content_type="application/json")


def stream(*chunks: dict[str, Any], protocol: str = "openai.chat") -> Step:
    """The step of a stream of these bodies."""
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    (step,) = decode(protocol, b"{}", body.encode(), content_type="text/event-stream")
    return step


def entries(**fields: tuple[Any, ...]) -> dict[str, Any]:
    """OpenAI's logprobs with further fields on each entry."""
    rows = [dict(zip(fields, values, strict=True)) for values in zip(*fields.values(), strict=True)]
    return {"content": [{"token": "t", **row, "logprob": value} for row, value in zip(rows, (-0.5, -1.0), strict=True)]}


USUAL = entries(x=(0, 0))
META = {"output_token_logprobs": [[-0.5, 7, "a"], [-1.0, 8, None]], "id": "x"}
ENGINE_DATA = {
    "completion_token_ids": [7, 8],
    "completion_logprobs": [-0.5, -1.0],
    "prompt_token_ids": [1, 2, 3],
    "finished": True,
}
"""As NVIDIA Dynamo has of a worker with vLLM."""
LEGACY = {"tokens": ["a", "b"], "token_logprobs": [-0.5, -1.0], "token_ids": [7.0, 8.0]}
UNSTREAMED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "token_ids": ({"token_ids": [7, 8], "logprobs": USUAL}, {}, "engine"),
    "response_token_ids": ({"response_token_ids": [7, 8], "logprobs": USUAL}, {}, "engine"),
    "raw_output": ({"raw_output": {"completion_token_ids": [7, 8]}, "logprobs": USUAL}, {}, "engine"),
    "meta_info": ({"meta_info": META, "logprobs": USUAL}, {}, "engine"),
    "meta_info alone": ({"meta_info": META}, {}, "engine"),
    "message": (
        {"message": {**MESSAGE, "generation_token_ids": [7, 8], "generation_log_probs": [-0.5, -1.0]}},
        {},
        "engine",
    ),
    "provider_specific_fields": (
        {"provider_specific_fields": {"token_ids": [7, 8], "stop_reason": None}, "logprobs": USUAL},
        {},
        "engine",
    ),
    "sglext": ({"logprobs": USUAL}, {"sglext": {"output_ids": [[7, 8]], "input_ids": [1, 2, 3]}}, "engine"),
    "engine_data": ({"logprobs": {"content": USUAL["content"][:1]}}, {"nvext": {"engine_data": ENGINE_DATA}}, "engine"),
    "nvext": ({"logprobs": USUAL}, {"nvext": {"completion_token_ids": [7, 8], "worker_id": None}}, "engine"),
    "token_id": ({"logprobs": entries(token_id=(7, 8))}, {}, "logprobs"),
    "verbose": ({"logprobs": USUAL}, {"__verbose": {"tokens": [7, 8]}}, "engine"),
    "id": ({"logprobs": entries(id=(7, 8))}, {}, "logprobs"),
    "legacy arrays": ({"logprobs": LEGACY}, {}, "logprobs"),
    "token_id:N": ({"logprobs": entries(token=("token_id:7", "token_id:8"))}, {}, "logprobs"),
}


@pytest.mark.parametrize("place", UNSTREAMED)
def test_ids_are_found_wherever_an_engine_puts_them(place: str) -> None:
    """The same two ids and logprobs from every place."""
    choice, top, source = UNSTREAMED[place]
    (step,) = answer(choice, **top)
    assert step.token_issue is None
    assert step.completion_token_ids is not None
    assert step.logprobs is not None
    assert step.completion_token_ids.tolist() == [7, 8]
    assert step.logprobs.tolist() == [-0.5, -1.0]
    assert step.token_source == source
    assert step.completion is not None
    assert step.completion.extra is None


PROMPTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "top": ({}, {"prompt_token_ids": [1, 2, 3]}),
    "choice": ({"prompt_token_ids": [1, 2, 3]}, {}),
    "message": ({"message": {**MESSAGE, "prompt_token_ids": [1, 2, 3]}}, {}),
    "raw_output": ({"raw_output": {"prompt_token_ids": [1, 2, 3]}}, {}),
    "sglext": ({}, {"sglext": {"input_ids": [1, 2, 3]}}),
    "engine_data": ({}, {"nvext": {"engine_data": ENGINE_DATA}}),
    "nvext": ({}, {"nvext": {"prompt_token_ids": [1, 2, 3]}}),
}


@pytest.mark.parametrize("place", PROMPTS)
def test_prompt_ids_are_found_wherever_an_engine_puts_them(place: str) -> None:
    """The same three ids from every place."""
    choice, top = PROMPTS[place]
    (step,) = answer({"token_ids": [7, 8], "logprobs": USUAL, **choice}, **top)
    assert step.prompt_token_ids is not None
    assert step.prompt_token_ids.tolist() == [1, 2, 3]


def test_every_row_of_the_table_says_where_it_was_seen() -> None:
    """A row without its source is a guess."""
    assert all(place.seen for place in (*COMPLETION_IDS, *PROMPT_IDS))


def test_together_streams_one_id_a_delta() -> None:
    """Its logprobs are one number a chunk."""
    chunks = [{"choices": [{"index": 0, "delta": {"content": c, "token_id": i}, "logprobs": lp}]} for c, i, lp in
              (("a", 7, -0.5), ("b", 8, -1.0))]  # fmt: skip
    step = stream(*chunks, {"choices": [{"index": 0, "delta": {}, "finish_reason": "eos"}]})
    assert (step.completion_token_ids is not None, step.logprobs is not None) == (True, True)
    assert step.completion_token_ids.tolist() == [7, 8]  # type: ignore[union-attr]
    assert step.logprobs.tolist() == [-0.5, -1.0]  # type: ignore[union-attr]


DYNAMO: dict[str, list[dict[str, Any]]] = {
    "engine_data": [{}, {"engine_data": {**ENGINE_DATA, "routed_experts": {"start": 0}}}],
    "engine_data twice": [{}, {"engine_data": ENGINE_DATA}, {"engine_data": ENGINE_DATA}],
    "parts": [{"completion_token_ids": [7]}, {"completion_token_ids": [8], "prompt_token_ids": [1, 2, 3]}],
    "both": [{"completion_token_ids": [7]}, {"completion_token_ids": [8], "engine_data": ENGINE_DATA}],
}
FINISHED = {"nvext": {"engine_data": {"finished": True}}}
EXTRA: dict[str, Any] = {
    "engine_data": {"nvext": {"engine_data": {"finished": True, "routed_experts": {"start": 0}}}},
    "engine_data twice": FINISHED,
    "parts": None,
    "both": FINISHED,
}
ENTRIES = {
    "openai.chat": {"content": [{"token": "a", "logprob": -0.5}]},
    "openai.completions": {"tokens": ["a"], "token_logprobs": [-0.5]},
}


def dynamo(place: str, protocol: str) -> list[dict[str, Any]]:
    """The chunks of a stream with these fields beside the choices."""
    chunks: list[dict[str, Any]] = []
    for text, nvext in zip(["a", "b", ""], DYNAMO[place], strict=False):
        said: dict[str, Any] = {"delta": {"content": text}} if protocol == "openai.chat" else {"text": text}
        choice = {"index": 0, **said, "logprobs": ENTRIES[protocol] if text else None}
        end = None if text == "a" else "stop"
        chunks.append({"id": "x", "model": "m", "choices": [{**choice, "finish_reason": end}], "nvext": nvext})
    return [*chunks, {"choices": [], "usage": {"completion_tokens": 2}}]


@pytest.mark.parametrize("place", DYNAMO)
@pytest.mark.parametrize("protocol", ENTRIES)
def test_dynamo_streams_ids_in_parts_or_all_at_the_end(protocol: str, place: str) -> None:
    """Beside the choices; what else is there stays in `extra`."""
    step = stream(*dynamo(place, protocol), protocol=protocol)
    assert step.token_issue is None
    assert step.prompt_token_ids is not None
    assert step.completion_token_ids is not None
    assert (step.prompt_token_ids.tolist(), step.completion_token_ids.tolist()) == ([1, 2, 3], [7, 8])
    assert step.logprobs is not None
    assert text(step) == "ab"
    assert step.extra == EXTRA[place]


@pytest.mark.parametrize("protocol", ENTRIES)
def test_the_logprobs_that_dynamo_has_beside_the_ids_are_theirs(protocol: str) -> None:
    """Those of the choice may lack some, or all: their text was held back by a parser."""
    chunks = dynamo("engine_data", protocol)
    for kept in (0, 1):
        for chunk in chunks[kept:-1]:
            chunk["choices"][0]["logprobs"] = None
        step = stream(*chunks, protocol=protocol)
        assert step.logprobs is not None
        assert step.logprobs.tolist() == [-0.5, -1.0]


def test_ids_that_were_sent_to_dynamo_are_the_prompt() -> None:
    """`token_data` takes the place of the chat template's, where the usage counts as many."""
    asked = json.dumps({"messages": [], "nvext": {"token_data": [1, 2, 3]}}).encode()
    for counted, expected in ((3, [1, 2, 3]), (4, None)):
        choice = {"index": 0, "message": MESSAGE, "finish_reason": "stop"}
        body = {
            "id": "x",
            "model": "m",
            "choices": [choice],
            "usage": {"prompt_tokens": counted, "completion_tokens": 2},
        }
        (step,) = decode("openai.chat", asked, json.dumps(body).encode(), content_type="application/json")
        assert (None if step.prompt_token_ids is None else step.prompt_token_ids.tolist()) == expected


@pytest.mark.parametrize(("field", "said"), [("timing", "and was not asked"), ("engine_data", "although it was asked")])
def test_whether_dynamo_was_asked_for_ids(field: str, said: str) -> None:
    """A step without ids says it."""
    body = json.dumps({"choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}]}).encode()
    asked = json.dumps({"messages": [], "nvext": {"extra_fields": [field]}}).encode()
    (step,) = decode("openai.chat", asked, body, content_type="application/json")
    assert step.token_issue is not None
    assert said in step.token_issue.message


def test_sglang_streams_its_ids_in_one_late_chunk() -> None:
    """The chunk has no choices of its own; each choice finds its ids by index."""
    late = {"choices": [], "sglext": {"input_ids": [1, 2], "output_ids": [[7, 8]]}}
    chunks = [
        {"choices": [{"index": 0, "delta": {"content": "ab"}, "logprobs": USUAL}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    ]
    step = stream(*chunks, late)
    assert step.prompt_token_ids is not None
    assert step.completion_token_ids is not None
    assert (step.prompt_token_ids.tolist(), step.completion_token_ids.tolist()) == ([1, 2], [7, 8])
    assert step.logprobs is not None


def test_a_lossy_litellm_stream_is_withheld() -> None:
    """The chunk with an empty delta is swallowed with its id: 1 id for 2 logprobs, and usage says 2."""
    step = stream(
        {"choices": [{"index": 0, "delta": {"content": "a"}, "token_ids": [7], "logprobs": USUAL}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"completion_tokens": 2}},
    )
    assert (step.completion_token_ids, step.logprobs) == (None, None)
    assert step.token_issue is not None
    assert step.token_issue.message == "1 tokens arrived, usage says 2."


def test_a_place_that_does_not_tell_choices_apart_is_not_believed_for_two() -> None:
    """llama-server's verbose tokens are one list, whatever n is."""
    body = {
        "choices": [{"index": i, "message": MESSAGE, "finish_reason": "stop"} for i in range(2)],
        "__verbose": {"tokens": [7, 8]},
    }
    steps = decode("openai.chat", b"{}", json.dumps(body).encode(), content_type="application/json")
    assert [step.completion_token_ids for step in steps] == [None, None]


def chats() -> list[tuple[str, Exchange]]:
    return [
        (engine, exchange)
        for engine in ENGINES
        for exchange in load_exchanges(DATA / f"wire_{engine}.jsonl.xz")
        if exchange.path.endswith("/chat/completions")
    ]


def plain_bodies(exchange: Exchange) -> list[dict[str, Any]]:
    """The JSON of an answer, or of all its chunks, read as plainly as can be."""
    if "event-stream" not in (exchange.content_type or ""):
        return [json.loads(exchange.response)]
    lines = exchange.response.decode("utf-8", "replace").splitlines()
    return [json.loads(line[5:]) for line in lines if line.startswith("data:") and "[DONE]" not in line]


@pytest.mark.parametrize(("engine", "exchange"), [pytest.param(e, x, id=f"{e}-{x.name}") for e, x in chats()])
def test_a_recorded_chat_gives_what_its_bytes_hold(engine: str, exchange: Exchange) -> None:
    """Ids, logprobs and text of each choice equal the raw bytes; what does not add up to usage is withheld."""
    steps = decode(
        "openai.chat",
        exchange.request,
        exchange.response,
        content_type=exchange.content_type,
        status=exchange.status or 0,
    )
    if (exchange.status or 0) >= 400:
        assert [step.status for step in steps] == ["error"]
        assert steps[0].error is not None
        assert steps[0].error.status == exchange.status
        return
    bodies = plain_bodies(exchange)
    none: dict[str, Any] = {}
    usage = next((body["usage"] for body in reversed(bodies) if body.get("usage")), none).get("completion_tokens")
    ids = [entry_values(bodies, step.choice, "id") for step in steps]
    logprobs = [entry_values(bodies, step.choice, "logprob") for step in steps]
    verbose = bodies[0].get("__verbose", {}).get("tokens") if bodies and len(steps) == 1 else None
    found = [verbose] if verbose else ids
    total = sum(len(one if one else other) for one, other in zip(found, logprobs, strict=True))
    for step, own_ids, own_logprobs in zip(steps, found, logprobs, strict=True):
        assert text(step) == said(bodies, step.choice)
        if not bodies or usage not in (None, total) or not own_ids or None in own_ids:
            assert step.completion_token_ids is None
        else:
            assert step.completion_token_ids is not None
            assert step.completion_token_ids.tolist() == own_ids
        if usage in (None, total) and own_logprobs and None not in own_logprobs:
            fits = not own_ids or None in own_ids or len(own_ids) == len(own_logprobs)
            assert (step.logprobs is not None) == fits
            assert not fits or np.array_equal(step.logprobs, np.array(own_logprobs, np.float32))  # type: ignore[arg-type]
        else:
            assert step.logprobs is None or (len(step.logprobs), own_logprobs, usage) == (0, [], 0)
        assert step.completion_token_ids is not None or step.token_issue is not None or not bodies


def entry_values(bodies: list[dict[str, Any]], choice: int, name: str) -> list[Any]:
    """One field of every logprobs entry of a choice."""
    return [
        entry.get(name)
        for body in bodies
        for item in body.get("choices", ())
        if item["index"] == choice and item.get("logprobs")
        for entry in item["logprobs"].get("content") or ()
    ]


def said(bodies: list[dict[str, Any]], choice: int) -> str:
    items = [item for body in bodies for item in body.get("choices", ()) if item["index"] == choice]
    return "".join((item.get("message") or item.get("delta") or {}).get("content") or "" for item in items)


def text(step: Step) -> str:
    if step.completion is None or step.completion.content is None:
        return ""
    assert isinstance(step.completion.content, str)
    return step.completion.content


def test_a_logprob_beyond_every_float_is_told() -> None:
    """As a whole number of four hundred digits it is read exactly, and is no logprob."""
    (step,) = answer({"logprobs": {**LEGACY, "token_logprobs": [-(10**400), -1.0]}})
    assert step.logprobs is None
    assert step.token_issue is not None
