"""An agent's turns as training rows, where its model writes other ids than its tokenizer does: by text, and by ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from live_script import LIVE, LiveScriptedServer

import rollout_trace as rt
from rollout_trace.testing import LoopbackServer, Reply, ScriptedServer
from rollout_trace.testing.tokenizer import ByteTokenizer, Part

TURNS = 8


class Spelling(ByteTokenizer):
    """A model that spells the words for which its tokenizer has an id each."""

    def assistant_parts(self, message: Mapping[str, Any]) -> list[Part]:
        plain = ByteTokenizer()
        return plain.assistant_parts(message)

    def _render_message(self, message: Mapping[str, Any]) -> list[int]:
        return [one for part in self._split(super()._render_message(message)) for one in part]

    def _split(self, ids: list[int]) -> list[list[int]]:
        """The ids with words in the place of their letters, between special tokens."""
        parts: list[list[int]] = [[]]
        for one in ids:
            if self.is_special(one):
                parts += [[one], []]
            else:
                parts[-1].append(one)
        return [part if not part or self.is_special(part[0]) else self.encode(self.decode(part)) for part in parts]


def adds(request: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> Reply:
    """Calls of ``add``, then an answer."""
    done = sum(message["role"] == "assistant" for message in messages)
    return Reply("The sum is known.") if done >= TURNS - 1 else Reply(None, [("add", f'{{"a": {done}, "b": 2}}')])


def _server(script: Callable[..., Reply]) -> LoopbackServer:
    if LIVE is not None:
        return LiveScriptedServer(script, LIVE)
    return ScriptedServer(script, tokenizer=Spelling(("add", "arguments", "sum")))


def assert_one_row(run: Callable[[Any, rt.Engine], object], folder: Path, script: Callable[..., Reply] = adds) -> None:
    """Eight turns are one row with exact turns; without, each prompt that says a call in other ids begins one.

    Args:
        run: runs an agent with a tool ``add`` against the server, recorded with this engine.
        folder: for the recordings.
        script: what the model answers: ``TURNS`` answers.
    """
    found = {}
    for exact in (False, True):
        path = folder / f"{exact}.jsonl"
        with rt.recording(path), _server(script) as server:
            run(server, rt.Engine("vllm", exact_turns=exact))
        (found[exact],) = [one for one in rt.read(path) if one.steps]
    by_text, by_ids = found[False], found[True]
    turns = [step.exact_turn for step in by_ids.steps]
    assert [turn is not None and turn.is_exact for turn in turns] == [False, *[True] * (TURNS - 1)], turns
    # A live model may sample the ids that its tokenizer gives.
    assert len(by_text.sequences()) == TURNS if LIVE is None else len(by_text.sequences()) > 1
    assert len(by_ids.sequences()) == 1
    assert [step.completion and step.completion.content for step in by_ids.steps] == [
        step.completion and step.completion.content for step in by_text.steps]  # fmt: skip
