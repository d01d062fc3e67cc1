"""Which recorded answer a request gets."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from rollout_trace import credentials
from rollout_trace.data.exchange import Exchange
from rollout_trace.testing import load_exchanges, normalize
from rollout_trace.testing.matching import Matcher, MatchOptions, Request, Unmatched, unused_text
from tests.testing.matching_cases import PROTOCOLS, TURNS, WITH_TOOLS, Turn, edited, exchange, request, same_request


def reason(found: Exchange | Unmatched) -> str:
    assert isinstance(found, Unmatched)
    return found.reason


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_conversation_is_answered_turn_by_turn(protocol: str) -> None:
    first, second = exchange(protocol, TURNS[:1], "one"), exchange(protocol, TURNS, "two", at=1)
    matcher = Matcher([[first, second]])
    assert matcher.unused() == [first, second]
    assert matcher.take(request(protocol, TURNS[:1])) is first
    assert matcher.unused() == [second]
    assert matcher.take(request(protocol, TURNS)) is second
    assert matcher.unused() == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_order_of_keys_and_the_spelling_of_numbers_do_not_count(protocol: str) -> None:
    recorded = exchange(protocol, TURNS, top_p=1)
    body = json.loads(recorded.request)
    text = json.dumps(dict(reversed(body.items())), indent=2).replace('"top_p": 1', '"top_p": 1.0')
    assert text != recorded.request.decode()
    assert Matcher([[recorded]]).take(Request("post", recorded.path, text.encode())) is recorded


def test_true_is_not_one() -> None:
    recorded = exchange("openai.chat", TURNS, store=True)
    assert reason(Matcher([[recorded]]).take(request("openai.chat", TURNS, store=1))) == "not_recorded"


def test_what_a_recorder_adds_is_not_compared() -> None:
    recorded = exchange("openai.chat", TURNS, logprobs=True, return_token_ids=True)
    assert Matcher([[recorded]]).take(request("openai.chat", TURNS)) is recorded
    recorded = exchange("openai.responses", TURNS, include=["message.output_text.logprobs"])
    assert Matcher([[recorded]]).take(request("openai.responses", TURNS)) is recorded
    recorded = exchange("openai.chat", TURNS, stream=True, stream_options={"include_usage": True})
    assert Matcher([[recorded]]).take(request("openai.chat", TURNS, stream=True)) is recorded
    recorded = exchange("openai.chat", TURNS, nvext={"extra_fields": ["engine_data"]})
    assert Matcher([[recorded]]).take(request("openai.chat", TURNS)) is recorded
    recorded = exchange("openai.chat", TURNS, nvext={"extra_fields": ["engine_data"], "cache_salt": "s"})
    assert Matcher([[recorded]]).take(request("openai.chat", TURNS, nvext={"cache_salt": "s"})) is recorded
    assert Matcher([[recorded]]).take(request("openai.chat", TURNS)) is not recorded


@pytest.mark.parametrize("protocol", WITH_TOOLS)
def test_tool_call_ids_may_differ(protocol: str) -> None:
    recorded = exchange(protocol, TURNS)
    renamed = [Turn(turn.kind, turn.text, turn.id and "call_other") for turn in TURNS]
    assert Matcher([[recorded]]).take(request(protocol, renamed)) is recorded


@pytest.mark.parametrize("protocol", ["openai.chat", "openai.responses", "anthropic.messages"])
def test_which_call_a_result_is_of_counts(protocol: str) -> None:
    calls = [Turn("user", "Both"), Turn("call", '{"city": "Paris"}', "a"), Turn("call", '{"city": "Rome"}', "b")]
    recorded = exchange(protocol, [*calls, Turn("result", "21", "a"), Turn("result", "25", "b")])
    swapped = request(protocol, [*calls, Turn("result", "21", "b"), Turn("result", "25", "a")])
    assert reason(Matcher([[recorded]]).take(swapped)) == "not_recorded"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_a_model_reads_counts(protocol: str) -> None:
    recorded = exchange(protocol, TURNS)
    matcher = Matcher([[recorded]])
    others = [
        request(protocol, [*TURNS[:2], Turn("result", "19 degrees", "call_7fQ")]),
        request(protocol, TURNS[:2]),
        request(protocol, [*TURNS, Turn("user", "And in Rome?")]),
        request(protocol, TURNS, seed=7),
        edited(recorded, lambda body: body.update(model="other")),
    ]
    if protocol == "google.generate_content":  # Its model is in the path.
        others[-1] = Request("POST", recorded.path.replace("2.5", "3"), recorded.request)
    assert [reason(matcher.take(one)) for one in others] == ["not_recorded"] * 5
    assert matcher.unused() == [recorded]


def test_a_stream_in_the_path_counts() -> None:
    recorded = exchange("google.generate_content", TURNS)
    path = recorded.path.replace(":generateContent", ":streamGenerateContent")
    kinds = [path, f"{path}?alt=sse", f"{path}?alt=sse&key=mine"]
    matcher = Matcher([[recorded]])
    assert [reason(matcher.take(Request("POST", one, recorded.request))) for one in kinds] == ["not_recorded"] * 3
    streamed = Exchange(**{**vars(recorded), "path": f"{path}?alt=sse"})
    assert Matcher([[streamed]]).take(Request("POST", kinds[2], recorded.request)) is streamed


def test_the_beginning_of_the_path_does_not_count() -> None:
    recorded = exchange("openai.chat", TURNS)
    assert Matcher([[recorded]]).take(Request("POST", "/proxy/openai/chat/completions", recorded.request)) is recorded


def test_equal_bytes_come_before_an_equal_normal_form() -> None:
    options = MatchOptions(ignore=("user",))
    recorded = [exchange("openai.chat", TURNS, user=user, at=None) for user in ("ann", "bob", "eve")]
    matcher = Matcher([recorded], options)
    assert matcher.take(request("openai.chat", TURNS, user="bob")) is recorded[1]
    assert matcher.take(request("openai.chat", TURNS, user="new")) is recorded[0]
    assert matcher.take(request("openai.chat", TURNS, user="bob")) is recorded[2]


def test_samples_of_one_prompt_come_in_their_order_and_once() -> None:
    recorded = [exchange("openai.chat", TURNS, str(number), at=number) for number in range(5)]
    matcher = Matcher([recorded])
    assert [matcher.take(request("openai.chat", TURNS)) for _ in recorded] == recorded
    found = matcher.take(request("openai.chat", TURNS))
    assert reason(found) == "used"
    assert isinstance(found, Unmatched)
    assert found.text().startswith("call 6 was recorded 5 times, and is asked for once more.")


@pytest.mark.parametrize(
    ("ignore", "settings"),
    [
        (("seed",), {"seed": 1}),
        (("metadata.run_id",), {"metadata": {"run_id": "a", "kept": 1}}),
        (("metadata.*",), {"metadata": {"run_id": "a", "kept": 1, "more": [1]}}),
        (("stop.1",), {"stop": ["x", "y"]}),
        (("messages.*.name", "user"), {"user": "ann"}),
    ],
)
def test_ignored_fields_may_differ(ignore: tuple[str, ...], settings: dict[str, Any]) -> None:
    bases: dict[str, Any] = {
        "metadata.run_id": {"metadata": {"kept": 1}},
        "metadata.*": {"metadata": {}},
        "stop.1": {"stop": ["x"]},
    }
    base = bases.get(ignore[0], {})
    recorded = exchange("openai.chat", TURNS, **settings)
    asked = request("openai.chat", TURNS, **base)
    assert Matcher([[recorded]], MatchOptions(ignore=ignore)).take(asked) is recorded
    assert reason(Matcher([[recorded]]).take(asked)) == "not_recorded"


def test_ignored_fields_of_messages() -> None:
    recorded = exchange("openai.chat", TURNS)

    def name(body: Any) -> None:
        for number, message in enumerate(body["messages"]):
            message["name"] = f"agent-{number}"

    asked = edited(recorded, name)
    assert Matcher([[recorded]], MatchOptions(ignore=("messages.*.name",))).take(asked) is recorded
    assert reason(Matcher([[recorded]], MatchOptions(ignore=("messages.0.name",))).take(asked)) == "not_recorded"


@pytest.mark.parametrize(("ignore", "error"), [("seed", TypeError), (("",), ValueError), (("a..b",), ValueError)])
def test_wrong_paths_are_refused(ignore: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="ignore"):
        MatchOptions(ignore=ignore)


def test_a_function_says_what_is_compared() -> None:
    options = MatchOptions(normalize=normalize.chain(normalize.dates, normalize.uuids))
    old = "Today is 2026-11-23, 16:44. Session 0b9e4d7c-3f0e-4d6e-9a3c-0d3b5a8f1c22."
    new = "Today is 2027-01-02, 09:10. Session 7c1b2d3e-0f0e-4d6e-9a3c-0d3b5a8f1c99."
    recorded = exchange("anthropic.messages", [Turn("user", old)])
    assert Matcher([[recorded]], options).take(request("anthropic.messages", [Turn("user", new)])) is recorded


def test_an_error_in_the_function_names_it_and_the_place() -> None:
    def last_field(body: Any) -> Any:
        return body["no such field"]

    matcher = Matcher([[exchange("openai.chat", TURNS)]], MatchOptions(normalize=last_field))
    with pytest.raises(ValueError, match=r"last_field failed on the body of POST .*KeyError.*test_matching.py, line"):
        matcher.take(request("openai.chat", TURNS[:1]))


def test_a_function_that_returns_no_json_is_refused() -> None:
    matcher = Matcher([[exchange("openai.chat", TURNS)]], MatchOptions(normalize=lambda body: {1, 2}))
    with pytest.raises(ValueError, match="a value that is not JSON"):
        matcher.take(request("openai.chat", TURNS[:1]))


def plain(method: str, path: str, body: bytes = b"", answer: bytes = b"{}") -> Exchange:
    return Exchange("plain", method, path, body, 200, (), answer, (len(answer),))


def test_requests_that_generate_nothing_are_answered_any_number_of_times() -> None:
    models, other = plain("GET", "/v1/models"), plain("GET", "/v1/models/gpt-4o")
    states = [plain("GET", "/v1/responses/r1", answer=state) for state in (b"queued", b"running", b"done")]
    matcher = Matcher([[models, *states], [other]])
    asked = [Request("GET", "/v1/responses/r1", b"") for _ in range(5)]
    assert [matcher.take(one) for one in asked] == [*states, states[2], states[2]]
    assert [matcher.take(Request("GET", "/api/v1/models", b"")) for _ in range(3)] == [models] * 3
    assert matcher.take(Request("GET", "/v1/models/gpt-4o", b"")) is other
    assert reason(matcher.take(Request("GET", "/v1/models/gpt-5", b""))) == "not_recorded"
    assert matcher.unused() == []


def test_bodies_that_are_not_json_are_compared_as_bytes() -> None:
    recorded = plain("POST", "/v1/files", b"--boundary\r\n\xff")
    matcher = Matcher([[recorded]])
    assert matcher.take(Request("POST", "/v1/files", b"--boundary\r\n\xff")) is recorded
    assert reason(matcher.take(Request("POST", "/v1/files", b"--boundary\r\n\xfe"))) == "not_recorded"


def test_a_key_that_was_cut_out_of_the_cassette() -> None:
    key = "sk-Zb81nQ4vT7"
    recorded = exchange("openai.chat", [Turn("user", f"My key is {credentials.MASK}")])
    try:
        credentials.remember(key)
        assert Matcher([[recorded]]).take(request("openai.chat", [Turn("user", f"My key is {key}")])) is recorded
        found = Matcher([[recorded]]).take(request("openai.chat", [Turn("user", f"The key is {key}")]))
        assert isinstance(found, Unmatched)
        assert key not in found.text()
    finally:
        credentials.forget_all()


def test_the_model_of_a_path_can_be_ignored() -> None:
    recorded = exchange("google.generate_content", TURNS)
    other = Request("POST", recorded.path.replace("flash", "pro"), recorded.request)
    assert Matcher([[recorded]], MatchOptions(ignore=("model",))).take(other) is recorded


def test_an_empty_cassette() -> None:
    for matcher in (Matcher([]), Matcher([[], []])):
        assert reason(matcher.take(request("openai.chat", TURNS))) == "nothing_recorded"


def test_a_deep_body_is_compared_as_bytes() -> None:
    deep = b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    recorded = Exchange("deep", "POST", "/v1/chat/completions", deep, 400, (), b"", (), protocol="openai.chat")
    matcher = Matcher([[recorded]])
    assert reason(matcher.take(Request("POST", "/v1/chat/completions", deep[:-2]))) == "not_recorded"
    assert matcher.take(Request("POST", "/v1/chat/completions", deep)) is recorded


RECORDED = sorted((Path(__file__).parent.parent / "data").glob("wire_*.jsonl.xz"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name.split(".")[0])
def test_what_engines_were_asked(path: Path) -> None:
    recorded = load_exchanges(path)
    assert recorded
    matcher = Matcher([recorded], MatchOptions(order="free"))
    assert all(isinstance(matcher.take(same_request(one)), Exchange) for one in recorded)
    assert matcher.unused() == []
    # As another client writes the same: other bytes.
    matcher = Matcher([recorded], MatchOptions(order="free"))
    respelled = [respell(one) for one in recorded]
    assert all(isinstance(matcher.take(one), Exchange) for one in respelled)
    assert matcher.unused() == []
    assert all(unused_text([one], width=80).count("\n") == 0 for one in recorded)
    found = matcher.take(respelled[0])
    assert isinstance(found, Exchange) or max(map(len, found.text(width=80).splitlines())) <= 80


def respell(recorded: Exchange) -> Request:
    try:
        return edited(recorded, lambda body: None)
    except ValueError:  # One was sent broken, to see the error.
        return same_request(recorded)


def test_an_exact_match_needs_no_normalize() -> None:
    def fails(body: Any) -> Any:
        return body["nothing"]

    first, second = exchange("openai.chat", TURNS[:1], "one"), exchange("openai.chat", TURNS, "two", at=1)
    matcher = Matcher([[first, second]], MatchOptions(normalize=fails))
    assert matcher.take(same_request(first)) is first
    with pytest.raises(ValueError, match=r"normalize=.*fails failed on the body of POST .*KeyError: 'nothing'.*line"):
        matcher.take(request("openai.chat", TURNS, seed=7))
    assert matcher.take(same_request(second)) is second


def test_a_recorded_body_that_normalize_fails_on_is_named_where_nothing_matches() -> None:
    recorded = exchange("openai.chat", TURNS[:1], metadata={"day": "monday"})
    matcher = Matcher([[recorded]], MatchOptions(normalize=lambda body: {**body, "metadata": body["metadata"]["day"]}))
    with pytest.raises(ValueError, match="KeyError: 'day'"):
        matcher.take(request("openai.chat", TURNS[:1], metadata={}))
    assert matcher.take(same_request(recorded)) is recorded


def test_other_requests_are_answered_while_the_nearest_is_looked_for() -> None:
    looking, may_go = threading.Event(), threading.Event()

    def normalized(body: Any) -> Any:
        # First to find an equal request, then, of one that has none, to find what is near.
        if body["messages"][-1]["content"] == "unknown" and next(times) == 2:
            looking.set()
            may_go.wait(30)
        return body

    times = count(1)
    recorded = exchange("openai.chat", TURNS[:1])
    matcher = Matcher([[recorded]], MatchOptions(normalize=normalized))
    with ThreadPoolExecutor(2) as pool:
        unknown = pool.submit(matcher.take, request("openai.chat", [Turn("user", "unknown")]))
        assert looking.wait(30)
        try:
            assert pool.submit(matcher.take, same_request(recorded)).result(30) is recorded
        finally:
            may_go.set()
        assert reason(unknown.result(30)) == "not_recorded"
