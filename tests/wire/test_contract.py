"""Every field of every recorded answer goes where the contract of its engine's release says: see contract.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rollout_trace.testing.recordings import load_exchanges
from tests.amount import some
from tests.wire.contract import DATA, RELEASES, contract_of, fields_of, recordings, written

HINT = "`python -m tests.wire.contract` writes the contracts anew: decide of each line that changes."


def test_every_recording_is_of_a_release() -> None:
    """A new file of recordings gets its name there."""
    named = [name for names in RELEASES.values() for name in names]
    assert sorted(named) == sorted(recordings())


@pytest.mark.parametrize("release", some(RELEASES, "vllm-0.33", "llama-server-b11549"))
def test_each_field_goes_where_the_contract_says(release: str) -> None:
    """One that is new, or that goes elsewhere now, is looked at by somebody first."""
    found, agreed = contract_of(release), written(release)
    assert found.keys() == agreed.keys(), HINT
    for protocol, fields in found.items():
        known = agreed[protocol]
        changed = {name: (known.get(name), fields.get(name)) for name in known | fields}
        assert {name: pair for name, pair in changed.items() if pair[0] != pair[1]} == {}, HINT


def test_a_new_field_is_found_wherever_it_stands() -> None:
    """In an answer and in each chunk of a stream, beside the choices and in them."""
    known = written("vllm-0.33")["openai.chat"]
    for one in load_exchanges(DATA / "wire_vllm_033.jsonl.xz"):
        if not one.name.startswith("exact_turn2"):
            continue
        body = one.response.replace(b'"model":', b'"newer":{"inner":1},"model":').replace(
            b'"index":0', b'"index":0,"fresh":[1]'
        )
        new = fields_of("openai.chat", [replace(one, response=body)])
        assert {".".join(path) for path in new} - known.keys() == {"newer.inner", "choices.fresh"}
