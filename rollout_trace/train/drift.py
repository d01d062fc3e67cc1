"""Drift: a prompt repeats an earlier completion in text, but not in token ids. Where, of what kind, and both id lists.

A step that begins a new sequence although its messages go on from an earlier step's is a break worth explaining; one
whose messages do not is a fork or a new conversation.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from rollout_trace._field_docs import document_fields
from rollout_trace._lazy import cached_property
from rollout_trace.data.model import CUT_OFF
from rollout_trace.data.tokens import Span, common_prefix
from rollout_trace.train import history

if TYPE_CHECKING:
    from rollout_trace.data.model import Step
    from rollout_trace.data.tokens import IntArray
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.train.earlier import Earlier, Row

DriftKind: TypeAlias = Literal["template", "retokenized", "tool_arguments", "thinking_removed", "rewritten"]

SHOWN = 8
"""Ids shown from the break on."""
_OPENING = 16
"""Tokens with which a template may open an answer: role, newline, ``<think>``."""

# How a call is mostly written, without its name and its arguments.
_BEFORE = '<tool_call>\n{"name": "", "arguments": '
_AFTER = "}\n</tool_call>"

_MEANING = {
    "template": "the chat template writes around the answer what the model did not read or sample there",
    "retokenized": "its text became other ids than those it came from",
    "tool_arguments": "tool arguments are written otherwise than the model wrote them",
    "thinking_removed": "the reasoning is no longer in the prompt",
    "rewritten": "the agent sent back another text than the model answered",
}


class Decodes(Protocol):
    """What is asked of a tokenizer here."""

    def decode(self, token_ids: list[int], /) -> str:
        """The text of ids."""
        ...


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """One break. The ids are those from ``position`` on, at most 8."""

    step_id: str
    """The step whose prompt drifted."""
    previous_step_id: str
    """The step from whose prompt and completion it should have gone on."""
    position: int
    """Index of the first id of the prompt that differs."""
    kind: DriftKind
    """``template``, ``retokenized``, ``tool_arguments``, ``thinking_removed``, or ``rewritten``."""
    expected: tuple[int, ...]
    """As they were read or sampled."""
    found: tuple[int, ...]
    """As the prompt has them."""
    expected_text: str | None = None
    """With a tokenizer: the text of ``expected``."""
    found_text: str | None = None

    def __str__(self) -> str:
        texts = "" if self.expected_text is None else f", {self.expected_text!r} became {self.found_text!r}"
        return (
            f"step {self.step_id}: its prompt leaves step {self.previous_step_id} at token {self.position} "
            f"({self.kind}: {_MEANING[self.kind]}): expected {list(self.expected)}, found {list(self.found)}{texts}."
        )


class Break:
    """A step that begins a new sequence, and the steps before it. What it means is found out when it is asked for."""

    def __init__(self, step: Step, prompt: Span, earlier: Earlier, count: int) -> None:
        self.step = step
        self._prompt = prompt
        # Steps are placed after this one too; the first `count` came before it.
        self._earlier, self._count = earlier, count

    @cached_property
    def drift(self) -> Drift | None:
        """What drifted; None where the step goes on from no earlier one."""
        return self.explain(None)

    @cached_property
    def is_fork(self) -> bool:
        """It shares its beginning with an earlier step, and is no drift."""
        return self.drift is None and self._earlier.shares_its_start(self.step, self._prompt, self._count)

    @property
    def is_root(self) -> bool:
        """It has nothing to do with any earlier step."""
        return self.drift is None and not self.is_fork

    def explain(self, tokenizer: Decodes | None) -> Drift | None:
        """``drift``, with texts where there is a tokenizer."""
        before_it = self._earlier.before(self.step, self._count)
        if before_it is None:
            return None
        previous, completion, row = before_it
        before = Span(completion.segment, 0, completion.stop).get()
        prompt = self._prompt.get()
        at = common_prefix(before, prompt)
        if at == len(before):
            # Nothing drifted: that sequence had gone on, or was not the last (`linear`).
            return None
        expected, found = _ids(before, at), _ids(prompt, at)
        return Drift(
            step_id=self.step.id,
            previous_step_id=previous.id,
            position=at,
            kind=_kind(
                self.step, previous, row, at, completion.stop, None if tokenizer is None else (tokenizer, prompt)
            ),
            expected=expected,
            found=found,
            expected_text=None if tokenizer is None else tokenizer.decode(list(expected)),
            found_text=None if tokenizer is None else tokenizer.decode(list(found)),
        )


def drift(trajectory: Trajectory, tokenizer: Any = None, *, linear: bool = False) -> list[Drift]:
    """Where prompts repeat an earlier completion in text, but not in token ids, and why.

    Args:
        trajectory: whose steps to look at; those that no sequence would use are left out.
        tokenizer: anything with ``decode(ids)``; the ids are then shown as text too.
        linear: as in ``Trajectory.sequences()``.
    """
    breaks = trajectory.sequences(linear=linear).report.breaks
    return [found for one in breaks if (found := one.explain(tokenizer)) is not None]


def _ids(array: IntArray, at: int) -> tuple[int, ...]:
    return tuple(array[at : at + SHOWN].tolist())


def _kind(step: Step, previous: Step, row: Row, at: int, end: int, texts: tuple[Decodes, IntArray] | None) -> DriftKind:
    owner, begin, stop = _owner(row, at, end) or (None, 0, 0)
    if owner is None or owner.completion is None:
        return "template"
    said = history.repeats(step, owner)
    if owner.completion.reasoning and not (said == "same" and history.keeps_reasoning(step, owner) and at > begin):
        return "thinking_removed"
    if at < begin:
        return "template"
    if said == "changed":
        return "rewritten"
    if texts is not None and _is_same_text(*texts, owner, at, begin, stop):
        return "retokenized" if at < stop - _has_end(owner) else "template"
    if said != "same":
        return "tool_arguments"
    if at == stop - 1 and _has_end(owner):
        # Of the whole answer the stop token alone is another.
        return "template"
    return "tool_arguments" if _is_in_arguments(owner, at - begin, stop - begin) else "retokenized"


def _has_end(step: Step) -> bool:
    """Whether the last id of a completion is a stop token."""
    return step.finish_reason is not None and step.finish_reason not in CUT_OFF


def _is_same_text(tokenizer: Decodes, prompt: IntArray, owner: Step, at: int, begin: int, stop: int) -> bool:
    """Whether the rest of an answer reads the same in a prompt, save its stop token."""
    sampled = owner.completion_token_ids
    assert sampled is not None
    rest = tokenizer.decode(sampled[at - begin : stop - begin - _has_end(owner)].tolist())
    # No id is less than a byte, but for a few that have no text.
    again = prompt[at : at + len(rest.encode("utf-8", "replace")) + SHOWN]
    return tokenizer.decode(again.tolist()).startswith(rest)


def _owner(row: Row, at: int, end: int) -> tuple[Step, int, int] | None:
    """The step of whose answer token ``at`` is, or with which the template opens it, and where its completion lies."""
    # They stand in order: the first that ends after the token is the only one that it can be.
    place = bisect_right(row.steps, at, key=itemgetter(2))
    if place == len(row.steps):
        return None
    step, begin, stop = row.steps[place]
    return (step, begin, stop) if stop <= end and begin - _OPENING <= at else None


def _is_in_arguments(step: Step, at: int, length: int) -> bool:
    """Whether a token of a completion is of the arguments of a tool call, by their share of the characters.

    Text comes first, and around the arguments stands what ``_BEFORE`` and ``_AFTER`` have, or much the same: where that
    came in other ids, nobody wrote the arguments otherwise.
    """
    answer = step.completion
    if answer is None or not answer.tool_calls:
        return False
    places = []
    done = len(answer.content or ())
    for call in answer.tool_calls:
        done += len(_BEFORE) + len(call.name or "")
        places.append((done, done + len(call.arguments or "")))
        done = places[-1][1] + len(_AFTER)
    return any(start * length <= at * done < stop * length for start, stop in places)
