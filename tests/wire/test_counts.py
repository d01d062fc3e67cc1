"""Counts and costs in the places of every provider: what an answer says, streamed or not, by the table of counts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rollout_trace.data.costs import COSTS, Price, PriceTable, provider_cost
from rollout_trace.data.counts import COUNTS
from rollout_trace.data.model import Step, Usage
from rollout_trace.wire import decode
from rollout_trace.wire.reading import usage_of
from tests.wire.anthropic import raw as messages
from tests.wire.raw import delta, read, sse, unary

WHOLE = {"message": {"content": "a"}}
COUNTS_OF_OPENAI = {"prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": 1010}


def both_ways(usage: dict[str, Any]) -> list[Step]:
    """A whole answer of chat with this usage, and a stream of it; with zeros behind, as some gateways send them."""
    zeros = {name: 0 for name, value in usage.items() if type(value) is int and value > 0}
    end: list[Any] = [{"id": "r", "choices": [], "usage": one} for one in (usage, zeros)]
    return [read(unary(WHOLE, usage=usage)), read(sse(delta({"content": "a"}), delta(finish_reason="stop"), *end))]


OTHER_NAMES = [
    ("cache_read", {"prompt_cache_hit_tokens": 900, "prompt_cache_miss_tokens": 100}),
    ("cache_read", {"prompt_cache_hit_tokens": 900, "prompt_tokens_details": None}),
    ("cache_read", {"prompt_cache_hit_tokens": 900, "prompt_tokens_details": {"cached_tokens": 0}}),
    ("cache_read", {"cached_tokens": 900}),
    ("cache_read", {"cached_tokens": 900, "prompt_tokens_details": {"cached_tokens": 900}}),
    ("cache_read", {"num_cached_tokens": 900}),
    ("cache_read", {"prompt_token_details": {"cached_tokens": 900.0}}),
    ("cache_read", {"cache_read_input_tokens": 900}),
    ("cache_write", {"cache_creation_input_tokens": 900}),
    ("cache_write", {"prompt_tokens_details": {"cache_creation_tokens": 900}}),
    ("reasoning", {"reasoning_tokens": 9}),
]


@pytest.mark.parametrize(("count", "usage"), OTHER_NAMES, ids=str)
def test_a_count_under_another_name_is_read(count: str, usage: dict[str, Any]) -> None:
    for step in both_ways({**COUNTS_OF_OPENAI, **usage}):
        assert step.usage is not None
        assert (step.usage.input, step.usage.output) == (1000, 10)
        assert getattr(step.usage, count) == (9 if count == "reasoning" else 900)
        rest = {"prompt_cache_miss_tokens": 100} if "prompt_cache_miss_tokens" in usage else None
        assert step.usage.extra == rest


def test_every_row_of_the_table_is_read() -> None:
    for row in COUNTS:
        counts: Any = 7
        for name in reversed(row.path):
            counts = {name: counts}
        found = usage_of({**counts, **({"input_tokens": 1} if row.shape == "anthropic" else {})}, row.shape)
        if row.count in ("tools", "total"):
            assert found.extra == counts
        elif (row.shape, row.count) != ("anthropic", "input"):
            assert getattr(found, row.count) == 7


SHOWN = [
    # xAI, where the total shows it; Gemini behind layers of OpenAI's shape.
    ((32, 9, 135, 94), (32, 103)),
    ((21, 0, 81, 60), (21, 60)),
    ((20, 5, 125, None), (20, 105)),
    # DeepInfra, whose total does not have it either.
    ((10, 84, 94, 1081), (10, 1165)),
    ((10, 84, None, 1081), (10, 1165)),
    # Inside, as OpenAI counts.
    ((32, 103, 135, 94), (32, 103)),
    ((32, 103, None, 94), (32, 103)),
    ((32, 103, 0, 94), (32, 103)),
]


@pytest.mark.parametrize(("sent", "right"), SHOWN, ids=str)
def test_reasoning_beside_the_completion_is_sampled_too(sent: tuple[Any, ...], right: tuple[int, int]) -> None:
    """What was sent is kept where the total shows something else, and only there."""
    usage = dict(zip(("prompt_tokens", "completion_tokens", "total_tokens"), sent, strict=False))
    usage = {name: value for name, value in usage.items() if value is not None}
    if sent[3] is not None:
        usage["completion_tokens_details"] = {"reasoning_tokens": sent[3]}
    for step in both_ways(usage):
        assert step.usage is not None
        assert (step.usage.input, step.usage.output, step.usage.reasoning) == (*right, sent[3])
        kept = (
            {name: value for name, value in usage.items() if type(value) is int and value}
            if right[1] != sent[1]
            else None
        )
        assert step.usage.extra == kept


def test_a_cache_that_is_no_part_of_the_prompt_is_added_to_it() -> None:
    """Layers over Anthropic's API that pass its `input_tokens` on as the prompt; xAI where it caches more than that."""
    for total in (9150, None):
        usage = {"prompt_tokens": 100, "completion_tokens": 50, "prompt_tokens_details": {"cached_tokens": 9000}}
        for step in both_ways(usage if total is None else {**usage, "total_tokens": total}):
            assert step.usage is not None
            assert (step.usage.input, step.usage.output, step.usage.cache_read) == (9100, 50, 9000)


def test_a_total_alone_is_kept() -> None:
    assert usage_of({"total_tokens": 9}) == Usage(extra={"total_tokens": 9})
    assert usage_of({"prompt_tokens": 4, "total_tokens": 9}) == Usage(input=4, output=5)
    google = {"promptTokenCount": 5, "candidatesTokenCount": 2, "totalTokenCount": 9}
    assert usage_of(google, "google") == Usage(input=5, output=4, extra=google)


INSPECT = [
    # Inside, as logs of before February 2026 have them for some providers; beside, in the total; more than the input.
    ((1000, 10, 1010, 900), (1000, 10)),
    ((100, 10, 1010, 900), (1000, 10)),
    ((1000, 10, 1910, 900), (1900, 10)),
    ((100, 10, 110, 900), (1000, 10)),
]


@pytest.mark.parametrize(("sent", "right"), INSPECT, ids=str)
def test_the_total_says_whether_the_input_has_what_a_cache_gave(sent: tuple[int, ...], right: tuple[int, int]) -> None:
    names = ("input_tokens", "output_tokens", "total_tokens", "input_tokens_cache_read")
    usage = usage_of(dict(zip(names, sent, strict=True)), "inspect")
    assert (usage.input, usage.output, usage.cache_read) == (*right, 900)


PLACES: list[dict[str, Any]] = [
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": COUNTS_OF_OPENAI}]},
    {"x_groq": {"id": "req", "usage": {**COUNTS_OF_OPENAI, "queue_time": 0.1}}},
]


@pytest.mark.parametrize("last", PLACES, ids=["choice", "x_groq"])
@pytest.mark.parametrize("zeros", [False, True])
def test_usage_in_another_place_of_a_stream_is_the_answers(last: dict[str, Any], *, zeros: bool) -> None:
    """Also with zeros in the chunk behind it, and beside a usage that says the same."""
    chunk = {"id": "r", "model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    chunks = [delta({"content": "a"}), {**chunk, **last}]
    if zeros:
        text = json.dumps(chunks[-1])
        for name, value in COUNTS_OF_OPENAI.items():
            text = text.replace(f'"{name}": {value}', f'"{name}": 0')
        chunks.append(json.loads(text))
    step = read(sse(*chunks))
    assert step.usage is not None
    assert (step.usage.input, step.usage.output) == (1000, 10)
    assert (step.extra or {}).get("usage") is None
    assert (step.extra or {}).get("x_groq") == ({"id": "req"} if "x_groq" in last else None)
    assert read(sse(*chunks, {"id": "r", "choices": [], "usage": COUNTS_OF_OPENAI})).usage == step.usage


def test_what_is_no_usage_of_the_answer_stays() -> None:
    """Groq's whole answers have there what its caches held; of two choices nobody knows whose usage it is."""
    caches = {"id": "req", "usage": {"dram_cached_tokens": 64, "sram_cached_tokens": 0}}
    step = read(unary(WHOLE, usage=COUNTS_OF_OPENAI, x_groq=caches))
    assert step.usage == Usage(input=1000, output=10)
    assert step.extra is not None
    assert step.extra["x_groq"] == caches
    body = unary({**WHOLE, "usage": COUNTS_OF_OPENAI}, {**WHOLE, "usage": COUNTS_OF_OPENAI})
    for one in decode("openai.chat", b"{}", body, content_type="application/json"):
        assert one.usage is None
        assert one.extra is not None
        assert one.extra["usage"] == COUNTS_OF_OPENAI


def test_counts_of_ollama_may_be_floats_and_repeated_as_zeros() -> None:
    bodies = [
        {"model": "m", "message": {"content": "a"}, "prompt_eval_count": 5.0, "eval_count": 4.0},
        {"model": "m", "message": {"content": ""}, "done": True, "prompt_eval_count": 0, "eval_count": 0},
    ]
    lines = b"".join(json.dumps(one).encode() + b"\n" for one in bodies)
    (step,) = decode("ollama.chat", b"{}", lines, content_type="application/x-ndjson")
    assert (step.status, step.usage) == ("ok", Usage(input=5, output=4))


def test_usage_of_anthropic_is_read_in_every_event() -> None:
    """Gateways put it into the last event, or into the delta."""
    counts = {"input_tokens": 3, "output_tokens": 2}
    start, end = messages.start(usage=None), {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
    for events in (
        [start, end, {"type": "message_stop", "usage": counts}],
        [start, {**end, "delta": {"stop_reason": "end_turn", "usage": counts}}, {"type": "message_stop"}],
        [start, {**end, "usage": counts}, {"type": "message_stop"}],
    ):
        assert messages.read(messages.sse(*events)).usage == Usage(input=3, output=2)


# Costs

COST_PLACES: list[tuple[dict[str, Any], float | None]] = [
    ({"cost": 0.002, "is_byok": False, "cost_details": {"upstream_inference_cost": 0.002}}, 0.002),
    ({"cost": 0.002, "cost_details": {"upstream_inference_cost": None}}, 0.002),
    ({"cost": 0, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.00197}}, 0.00197),
    ({"cost": 0, "cost_details": {"upstream_inference_cost": 0.00197}}, 0.00197),
    ({"cost": 0.0001, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.002}}, 0.0021),
    # What the provider charged is not known: neither 0 nor the fee is the cost.
    ({"cost": 0, "is_byok": True}, None),
    ({"cost": 0.0001, "is_byok": True, "cost_details": {"upstream_inference_cost": None}}, None),
    ({"cost_in_usd_ticks": 232856000}, 0.0232856),
    ({"cost": {"input_tokens_cost": 0.001, "request_cost": 0.005, "total_cost": 0.008}}, 0.008),
    ({"cost": {"input_tokens_cost": 0.001}}, None),
    ({"estimated_cost": 0.00045}, 0.00045),
    ({"estimated_cost": None}, None),
    ({"cost_in_usd_ticks": True}, None),
    ({"estimated_cost": -1}, None),
]


@pytest.mark.parametrize(("usage", "right"), COST_PLACES, ids=str)
def test_a_cost_is_the_providers(usage: dict[str, Any], right: float | None) -> None:
    for step in both_ways({**COUNTS_OF_OPENAI, **usage}):
        found = provider_cost(step)
        assert (None if found is None else (found.source, found.currency)) == (right and ("provider", "USD"))
        assert (None if found is None else found.amount) == (None if right is None else pytest.approx(right))


def test_every_row_of_costs_is_read() -> None:
    for row in COSTS:
        value: Any = 3
        for name in reversed(row.path):
            value = {name: value}
        step = read(unary(WHOLE, **(value if row.of_answer else {"usage": {**COUNTS_OF_OPENAI, **value}})))
        found = provider_cost(step)
        assert found is not None
        assert found.amount == pytest.approx(3 * row.unit)


def test_a_later_zero_takes_no_cost_away() -> None:
    ends = [{"id": "r", "choices": [], "usage": {**COUNTS_OF_OPENAI, "cost": one}} for one in (0.002, 0.0)]
    found = provider_cost(read(sse(delta({"content": "a"}), delta(finish_reason="stop"), *ends)))
    assert found is not None
    assert found.amount == 0.002


HOUR = {"ephemeral_5m_input_tokens": 250_000, "ephemeral_1h_input_tokens": 750_000}


@pytest.mark.parametrize("way", ["anthropic", "litellm"])
def test_tokens_kept_for_an_hour_have_their_own_price_or_none(way: str) -> None:
    if way == "anthropic":
        usage = usage_of(
            {"input_tokens": 0, "output_tokens": 0, "cache_creation_input_tokens": 1_000_000, "cache_creation": HOUR},
            "anthropic",
        )
    else:
        details = {"cache_creation_tokens": 1_000_000, "cache_creation_token_details": HOUR}
        usage = usage_of({"prompt_tokens": 1_000_000, "completion_tokens": 0, "prompt_tokens_details": details})
    step = Step(id="s", call_id="c", model="m", usage=usage)
    cost = PriceTable({"m": Price(3, 15, cache_write=3.75, cache_write_1h=6)}).cost(step)
    assert cost is not None
    assert cost.amount == pytest.approx(0.25 * 3.75 + 0.75 * 6)
    for price in (Price(3, 15, cache_write=3.75), Price(3, 15)):
        assert PriceTable({"m": price}).cost(step) is None
    # Contradictory: more of them than were written.
    less = Usage(input=9, output=0, cache_write=5, extra={"cache_creation": {"ephemeral_1h_input_tokens": 6}})
    step = Step(id="s", call_id="c", model="m", usage=less)
    assert PriceTable({"m": Price(3, 15, cache_write_1h=6)}).cost(step) is None
