"""Trajectories whose calls go to a journal, without a recording: what a process that is killed leaves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai

import rollout_trace as rt
from rollout_trace.record.journal import Journal
from rollout_trace.record.state import state_of
from rollout_trace.testing import ScriptedServer

ASKED: dict[str, Any] = {"model": "m", "logprobs": True, "extra_body": {"return_token_ids": True}}


@contextmanager
def journaled(journal: Journal, **settings: Any) -> Iterator[rt.Trajectory]:
    """A trajectory that is in the journal."""
    with rt.trajectory(**settings) as trajectory:
        attach(journal, trajectory)
        yield trajectory


def attach(journal: Journal, trajectory: rt.Trajectory) -> None:
    """What a recording does with a trajectory that opens."""
    state = state_of(trajectory)
    assert state is not None
    assert state.log is not None
    state.journal = state.log.journal = journal.trajectory(trajectory)


def died(journal: Journal) -> None:
    """As if its process had been killed now: its files stay, and nobody holds them."""
    journal.close()


def sdk(server: ScriptedServer) -> Any:
    """A wrapped client."""
    return rt.wrap_openai(track(openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0)))


def track(client: Any) -> Any:
    """The client, to be closed after the test."""
    _clients.append(client)
    return client


def close_clients() -> None:
    """Closes those that were made since the last time."""
    while _clients:
        _clients.pop().close()


_clients: list[Any] = []


def ask(client: Any, text: str = "hi", **options: Any) -> Any:
    """One call."""
    return client.chat.completions.create(messages=[{"role": "user", "content": text}], **{**ASKED, **options})


def talk(client: Any, turns: int, **options: Any) -> None:
    """A conversation, each request with all that was said before."""
    messages: list[Any] = []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"question {turn}"})
        answer = client.chat.completions.create(messages=messages, **{**ASKED, **options})
        messages.append({"role": "assistant", "content": answer.choices[0].message.content})


def files_of(output: Path) -> list[Path]:
    """The journals beside an output, by name."""
    folder = Path(f"{os.fspath(output)}.journal")
    return sorted(folder.iterdir()) if folder.is_dir() else []
