"""docs/comparison.md is what the committed results render to: nobody edits it by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.peers import page
from benchmarks.peers.checks import Recorded, choices, ended_early, own_traces, sent
from benchmarks.peers.peers import OTHERS, OURS, PEERS
from benchmarks.peers.run import RESULTS
from benchmarks.peers.tables import COLUMNS


@pytest.fixture(scope="module")
def results() -> Any:
    return json.loads(RESULTS.read_text())


def test_the_page_is_what_the_results_render_to(results: Any) -> None:
    assert page.PAGE.read_text() == page.render(results)


def test_every_peer_is_measured_or_listed_with_a_reason(results: Any) -> None:
    measured = results["calls"].keys() | results["missing"].keys()
    assert {peer.name for peer in PEERS} <= measured
    text = page.PAGE.read_text()
    assert all(peer.title in text or peer.name in results["missing"] for peer in (*OURS, *OTHERS))


def test_every_cell_has_a_column_and_every_column_its_cells(results: Any) -> None:
    columns = {name for names in COLUMNS.values() for name in names}
    for cells in results["behaviour"].values():
        assert cells.keys() == columns
        assert {value for value, _ in cells.values()} <= {"yes", "no", "partly", ""}


def _record(text: str, trace: str | None = "a", *, failed: bool = False) -> dict[str, Any]:
    return {"text": text, "trace": trace, "failed": failed}


def test_ids_are_found_as_one_list_and_not_inside_of_longer_numbers() -> None:
    assert Recorded([_record('{"ids": [1, 22, 3]}')]).ids([1, 22, 3]) == ("yes", "")
    assert Recorded([_record('"{\\"ids\\": [1,22,3]}"')]).ids([1, 22, 3]) == ("yes", "")
    assert Recorded([_record('{"ids": [1, 22, 30]}')]).ids([1, 22, 3]) == ("no", "")
    assert Recorded([_record('{"ids": [11, 22, 3]}')]).ids([1, 22, 3]) == ("no", "")
    assert Recorded([_record("[1, 2] and [3, 4]")]).ids([1, 2, 3, 4], [[1, 2], [3, 4]])[0] == "partly"
    assert Recorded([_record("[3, 4] and [1, 2]")]).ids([1, 2, 3, 4], [[1, 2], [3, 4]])[0] == "no"
    assert Recorded([_record("nothing")]).ids([]) == ("no", "")


def test_logprobs_are_found_in_their_order_and_float32_is_named() -> None:
    kept = _record('{"content": [{"logprob": -0.1, "bytes": [1]}, {"logprob": -2.5e-05}]}')
    assert Recorded([kept]).logprobs([-0.1, -2.5e-05]) == ("yes", "")
    assert Recorded([kept]).logprobs([-2.5e-05, -0.1]) == ("no", "")
    assert Recorded([_record("[-0.10000000149011612]")]).logprobs([-0.1]) == ("yes", "as float32")
    assert Recorded([_record("[-0.11]")]).logprobs([-0.1]) == ("no", "")


def test_an_answer_is_read_from_its_bytes() -> None:
    choice = {"token_ids": [5, 6], "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -1.5}]}}
    body = json.dumps({"prompt_token_ids": [1, 2], "choices": [choice]})
    found = sent(body.encode(), streamed=False)
    assert (found.prompt, found.completion, found.logprobs) == ([1, 2], [5, 6], [-0.5, -1.5])
    assert sent(f"data: {body}\n\ndata: [DONE]\n\n".encode(), streamed=True) == found


def test_a_stream_that_ended_early_needs_its_tokens_and_its_mark() -> None:
    answer = sent(b'{"choices": [{"token_ids": [5, 6]}, {"token_ids": [7, 8]}]}', streamed=False)
    assert ended_early(Recorded([]), answer) == ("no", "no record")
    assert ended_early(Recorded([_record("[5, 6, 7, 8]", failed=True)]), answer) == ("yes", "")
    assert ended_early(Recorded([_record("[5, 6, 7, 8]")]), answer) == ("partly", "not marked")
    assert ended_early(Recorded([_record("text")]), answer) == ("partly", "no ids, not marked")
    assert choices(Recorded([_record("[5, 6]")]), answer) == ("partly", "1 of 2")


def test_calls_of_two_tasks_are_in_their_own_traces() -> None:
    own = [_record(f"{number} of agent-{name}", f"agent-{name}") for name in "AB" for number in range(2)]
    assert own_traces(Recorded(own)) == ("yes", "")
    mixed = [*own[:3], _record("1 of agent-B", "agent-A")]
    assert own_traces(Recorded(mixed))[0] == "no"
    assert own_traces(Recorded([*own[:3], _record("1 of agent-B", None)]))[0] == "no"
    assert own_traces(Recorded(own[:3])) == ("no", "3 of 4 recorded")
