"""Trajectories of recorded answers of vLLM with routed experts, sampling masks and versions; and what their bytes hold.

The second half reads the bytes by hand (tests/wire/extras_reader.py), without the library.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

import rollout_trace as rt
from rollout_trace.data.exchange import Exchange
from rollout_trace.testing.recordings import load_exchanges
from rollout_trace.wire import decode
from tests.consumers.recorded import DATA
from tests.wire.extras_reader import Choice, read

PROTOCOLS = {
    "/v1/chat/completions": "openai.chat",
    "/v1/completions": "openai.completions",
    "/inference/v1/generate": "vllm.generate",
}
TURNS = ("moe_genturns_1", "moe_genturns_2", "moe_genturns_3")
"""Three turns of one row; each asks for the experts from where those of the turn before end."""
MASKS = ("mask_gen_topk5", "mask_gen_topk50_minp", "mask_gen_topk5_topp9", "mask_gen_topk5_stream")
"""Answers with a sampling mask, of one turn; the second's is 3 to 47 ids wide."""
VERSIONS = ("moe_wv_mid",)
"""The weights changed within the answer. It has no logprobs."""

RUNS = (TURNS, *((name,) for name in MASKS))
"""The recordings of several runs, of one row each and of different lengths, with experts."""


@cache
def exchanges() -> dict[str, Exchange]:
    """All recordings by name."""
    return {one.name: one for one in load_exchanges(DATA / "wire_vllm_extras.jsonl.xz") if one.path in PROTOCOLS}


def steps(*names: str) -> list[rt.Step]:
    """The first choice of each recording, decoded."""
    found = []
    for at, name in enumerate(names):
        one = exchanges()[name]
        first, *_ = decode(PROTOCOLS[one.path], one.request, one.response, content_type=one.content_type)
        found.append(replace(first, index=at, id=name, call_id=name))
    return found


def trajectory(*names: str) -> rt.Trajectory:
    """One run whose steps are these recordings."""
    return rt.Trajectory(id=names[0], group_id="recorded", steps=steps(*names), reward=1.0)


def runs() -> list[rt.Trajectory]:
    """The runs of ``RUNS``."""
    return [trajectory(*names) for names in RUNS]


def choice(name: str) -> Choice:
    """The first choice of a recording as its bytes have it."""
    one = exchanges()[name]
    return read(one.path, one.response)[0]


def ids(*names: str) -> list[int]:
    """The ids of a row of these turns: prompt and completion of the last."""
    last = choice(names[-1])
    assert last.prompt is not None
    assert last.ids is not None
    return [*last.prompt, *last.ids]


def experts(*names: str) -> Any:
    """[length - 1, layers, k]: the experts of all tokens of a row but the last, of the first turn that has them."""
    length = len(ids(*names)) - 1
    rows: dict[int, Any] = {}
    for name in names:
        found = choice(name)
        end = len(ids(name)) - 1
        for position, row in zip(range(end - len(found.experts), end), found.experts, strict=True):
            rows.setdefault(position, row)
    return np.stack([rows[position] for position in range(length)])


def mask(name: str) -> list[list[int]]:
    """The ids that could be sampled at each token of a completion."""
    found = choice(name).mask
    assert found is not None
    return found
