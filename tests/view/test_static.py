"""The page as one file: what it holds, and what it may load."""

from __future__ import annotations

import gzip
import json
import random
import re
from base64 import b64decode, b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.view import assets
from rollout_trace.view.static import write_static

from .build import conversation, hostile, says, step, user


def held(page: str) -> dict[str, Any]:
    """What the elements of compressed JSON hold, by id."""
    found = re.findall(r'<script type="application/gzip" id="([^"]*)">([^<]*)</script>', page)
    return {name: json.loads(gzip.decompress(b64decode(data))) for name, data in found}


def test_a_file_holds_its_trajectories(tmp_path: Path) -> None:
    parent, child = conversation(), conversation()
    child.id, child.episode_id, child.parent_id = "child", parent.episode_id, parent.id
    path = tmp_path / "page.html"
    written = write_static(path, [("a.jsonl", parent), ("a.jsonl", child), ("b.jsonl", hostile())], title="<a>")
    page = path.read_text(encoding="utf-8")
    assert (written.trajectories, written.size) == (3, path.stat().st_size)
    data = held(page)
    assert list(data) == ["rollout-0-0", "rollout-0-1", "rollout-1-2", "rollout-data"]
    assert [one["key"] for one in data["rollout-data"]["summaries"]] == ["0-0", "0-1", "1-2"]
    assert [one["name"] for one in data["rollout-data"]["info"]["files"]] == ["a.jsonl", "b.jsonl"]
    first = data["rollout-0-0"]
    assert len(first["steps"]) == 2
    assert [child for one in first["steps"] for child in one.get("children", [])] == ["child"]
    assert "<title>&lt;a&gt;</title>" in page


def test_a_token_costs_few_bytes(tmp_path: Path) -> None:
    chance = random.Random(3)
    words = [f" word{i}" for i in range(500)]
    steps = [step(i, [user(f"Question {i}")], says(f"Answer {i}"), **_sampled(chance, words, 200)) for i in range(20)]
    sizes = []
    for n in (1, 6):
        some = [("a.jsonl", rt.Trajectory(steps=steps)) for _ in range(n)]
        sizes.append(write_static(tmp_path / "page.html", some, title="a").size)
    # 100 such trajectories are below 20 MB.
    assert (sizes[1] - sizes[0]) / 5 < 200_000


def _sampled(chance: random.Random, words: list[str], n: int) -> dict[str, Any]:
    """Tokens with five alternatives each."""
    ids = [chance.randrange(len(words)) for _ in range(n)]
    logprobs = [-chance.expovariate(3) for _ in ids]
    top = [
        [{"token": words[one], "token_id": one, "logprob": logprob}]
        + [
            {"token": words[i], "token_id": i, "logprob": logprob - chance.expovariate(0.3)}
            for i in chance.sample(range(500), 4)
        ]
        for one, logprob in zip(ids, logprobs, strict=True)
    ]
    return {
        "prompt_token_ids": [1, 2], "completion_token_ids": ids, "logprobs": logprobs, "top_logprobs": top,
        "token_texts": [words[one] for one in ids],
    }  # fmt: skip


def test_a_file_runs_our_scripts_alone_and_loads_nothing(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_static(path, [("a.jsonl", hostile())], title="a")
    page = path.read_text(encoding="utf-8")
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src 'none'; img-src data:;")
    for tag in ("script", "style"):
        ((inside),) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.S)
        assert f"{tag}-src 'sha256-{b64encode(sha256(inside.encode()).digest()).decode()}'" in policy
    # What is not compressed is ours alone.
    ours = re.sub(r'<script type="application/gzip".*?</script>', "", page, flags=re.S)
    assert "alert(1)" not in ours
    assert not re.findall(r"""(?:src|href)=["'](?!data:,|#)[^"']*""", ours.replace("<script>", ""))


def test_a_failure_leaves_an_earlier_file(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("before")
    with pytest.raises(RuntimeError):
        write_static(path, (_raise() for _ in range(1)), title="a")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def _raise() -> tuple[str, rt.Trajectory]:
    raise RuntimeError


def test_the_page_loads_what_its_order_lists() -> None:
    folder = Path(assets.__file__).parent / "page"
    for name in ("page.css", "page.js"):
        found = assets.asset(name)
        assert found is not None
        assert f'="{name}"' in assets.linked_page()
        parts = [one for one in assets.names() if one.endswith(Path(name).suffix)]
        assert found[0].decode() == "\n".join((folder / part).read_text(encoding="utf-8") for part in parts)
    assert assets.asset("../view.py") is None
    assert assets.asset("index.html") is None
    listed = {path.name for path in folder.iterdir()}
    assert listed == {*assets.names(), "index.html", "order.txt"}
