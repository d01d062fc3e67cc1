"""What a probe finds out about exact turns: whether a prompt's ids are taken beside its messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rollout_trace._field_docs import document_fields
from rollout_trace.clients.ask import REFUSAL_STATUSES
from rollout_trace.wire.profiles import PROMPT_FIELDS
from rollout_trace.wire.protocols import record_of

if TYPE_CHECKING:
    from rollout_trace.data.model import Step

_BEGIN = "Name a tree."
_GO_ON = "Name another one."


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeExactTurns:
    """Whether exact turns (`rt.Engine(..., exact_turns=True)`) work in one protocol."""

    protocol: str
    takes_ids: bool | None
    """Whether the server uses ids sent beside the messages as the prompt: the answer reports the ids that were sent.
    None: unknown."""
    tokenizes: bool | None
    """Whether the server's ``/tokenize`` returns the ids of messages. None: unknown."""
    works: bool | None
    """Whether a second turn, sent as ids, was served as such: field, tokenizer and template all work. None: unknown."""
    problem: str | None
    """Why exact turns do not work; None if they do."""

    @property
    def form(self) -> str:
        """Name of the protocol in tables: ``chat``, ..."""
        return self.protocol.rpartition(".")[2]


def ids_of(step: Step | None) -> list[int] | None:
    """Gives ids to send beside messages that no server would make of them; None if the answer lacks ids.

    They are those of the completion, then those of the prompt, which ends as prompts of its template do.
    """
    if step is None or step.prompt_token_ids is None or step.completion_token_ids is None:
        return None
    ids = [*step.completion_token_ids.tolist(), *step.prompt_token_ids.tolist()]
    return ids if len(step.completion_token_ids) else None


def without_ids(protocol: str) -> ProbeExactTurns:
    """The result where there is nothing to begin a prompt with."""
    problem = "the answers have no ids of prompt and completion."
    return ProbeExactTurns(protocol=protocol, takes_ids=None, tokenizes=None, works=None, problem=problem)


def alone(body: Mapping[str, Any], protocol: str) -> dict[str, Any]:
    """Arguments of a call with a message that no other call of the probe has: its answer is then that of one step."""
    return {**body, record_of(protocol).request.messages: [{"role": "user", "content": _BEGIN}]}


def with_ids(body: Mapping[str, Any], engine: str, protocol: str, ids: Sequence[int]) -> dict[str, Any]:
    """Arguments of a call with ids beside its messages."""
    outer, _, inner = PROMPT_FIELDS[engine, protocol].partition(".")
    value: Any = {inner: [*ids]} if inner else [*ids]
    return {**body, "extra_body": {**body.get("extra_body", {}), outer: value}}


def continued(body: Mapping[str, Any], protocol: str, step: Step) -> dict[str, Any]:
    """Arguments of the call that continues a step, by its text."""
    name = record_of(protocol).request.messages
    said = "" if step.completion is None else step.completion.content or ""
    answer = {"role": "assistant", "content": said}
    return {**body, name: [*body[name], answer, {"role": "user", "content": _GO_ON}]}


def taken(protocol: str, steps: Sequence[Step], *, status: int | None, failure: str | None) -> ProbeExactTurns:
    """The result of a call with ids beside its messages. ``failure``: why it was not answered; None where it was."""
    turn = steps[0].exact_turn if steps and failure is None else None
    takes_ids = False if failure is not None and status in REFUSAL_STATUSES else None if turn is None else turn.is_exact
    problem = failure if turn is None else turn.detail
    return ProbeExactTurns(protocol=protocol, takes_ids=takes_ids, tokenizes=None, works=None, problem=problem)


def with_second_turn(
    found: ProbeExactTurns, steps: Sequence[Step], failure: str | None, tokenizes: bool | None
) -> ProbeExactTurns:
    """The result with that of a second turn, which was sent as ids where that could be done.

    ``tokenizes`` is what other protocols showed: what a server has rendered it is not asked for again.
    """
    turn = steps[0].exact_turn if steps and failure is None else None
    if turn is None:
        return replace(found, tokenizes=tokenizes, problem=found.problem or failure)
    if turn.reason == "tokenizer":
        tokenizes = False
    elif turn.n_requests or turn.n_ids is not None:
        tokenizes = True
    # A text that the tokenizer gives back as it was sampled hides that ids are ignored.
    works = bool(found.takes_ids) and turn.is_exact
    # What became of the ids of one call became of those of the other.
    problems = [found.problem, turn.detail if found.problem is None or tokenizes is False else None]
    return replace(found, tokenizes=tokenizes, works=works, problem="; ".join(filter(None, problems)) or None)


HEADER = ("exact turns", "takes ids", "/tokenize", "second turn")

__all__ = ["HEADER", "ProbeExactTurns", "alone", "continued", "ids_of", "taken", "with_ids", "with_second_turn",
           "without_ids"]  # fmt: skip
