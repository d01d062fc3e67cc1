"""Drift: a prompt repeats an earlier completion in text, but not in token ids. Its place, its kind, and both id lists.

A step that begins a new sequence although its messages continue an earlier step's has drifted; one whose messages do
not is a fork or a new conversation.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rollout_trace._field_docs import document_fields
from rollout_trace._python import cached_property
from rollout_trace.data.conversations import Conversations
from rollout_trace.data.model import CUT_OFF, shared
from rollout_trace.data.tokens import Span, common_prefix
from rollout_trace.wire.chat_answers import compare_answer, keeps_reasoning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rollout_trace.data.model import Step
    from rollout_trace.data.tokens import IntArray
    from rollout_trace.data.trajectory import Trajectory


Placed: TypeAlias = "tuple[Step, Span, Any]"
"""A step, the span up to the end of its completion, and the row that it was added to (``Row`` of ``sequences.py``)."""
DriftKind: TypeAlias = Literal["template", "retokenized", "tool_arguments", "thinking_removed", "rewritten"]

SHOWN = 8
"""Number of ids kept in a ``Drift``, from the break on."""
_OPENING = 16
"""Maximum number of tokens with which a template opens an answer: role, newline, ``<think>``."""

# The usual text around the arguments of a tool call, without the tool's name.
_BEFORE = '<tool_call>\n{"name": "", "arguments": '
_AFTER = "}\n</tool_call>"

MEANINGS = {
    "template": "the chat template adds text around the answer that the model neither read nor sampled there",
    "retokenized": "its text became other ids than those it came from",
    "tool_arguments": "tool arguments are written in another way than the model wrote them",
    "thinking_removed": "the reasoning is no longer in the prompt",
    "rewritten": "the agent sent back another text than the model answered",
}
"""What each kind of drift means, after ``: ``."""


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A place where a prompt drifted. ``expected`` and ``found`` have the ids from ``position`` on, at most 8."""

    step_id: str
    """Id of the step whose prompt drifted."""
    previous_step_id: str
    """Id of the step with whose prompt and completion the prompt should have begun."""
    position: int
    """Index of the first id of the prompt that differs."""
    kind: DriftKind
    """``template``, ``retokenized``, ``tool_arguments``, ``thinking_removed``, or ``rewritten``."""
    expected: tuple[int, ...]
    """Ids of the previous step, as read or sampled."""
    found: tuple[int, ...]
    """Ids of the prompt."""
    expected_text: str | None = None
    """The text of ``expected``; None without a tokenizer."""
    found_text: str | None = None
    """The text of ``found``; None without a tokenizer."""

    def __str__(self) -> str:
        texts = "" if self.expected_text is None else f", {self.expected_text!r} became {self.found_text!r}"
        return (
            f"step {self.step_id}: its prompt leaves step {self.previous_step_id} at token {self.position} "
            f"({self.kind}: {MEANINGS[self.kind]}): expected {list(self.expected)}, found {list(self.found)}{texts}."
        )


class Earlier:
    """The steps that are in rows, in order, and the index of their conversations.

    The index is built on first use: by then all steps are placed, and one index serves all breaks.
    """

    def __init__(self, placed: list[Placed]) -> None:
        self.placed = placed

    def predecessors(self, at: int) -> Iterator[Placed]:
        """The steps that the one at this position continues: the answers, the latest first, to the longest request."""
        request = None
        for found in self._index.continued(at):
            node = self._index.request(found)
            if node is not (request := request or node):
                return
            yield self.placed[found]

    def shares_start(self, at: int, prompt: Span) -> bool:
        """Returns whether an earlier step has the same first message; without messages in one of them, first id."""
        has_messages = shared(self.placed[at][0], "messages") is not None
        first_id = self._first_ids[has_messages].get(_first_id(prompt), at)
        return first_id < at or self._index.shares_start(at)

    @cached_property
    def _index(self) -> Conversations:
        index = Conversations()
        for step, _, _ in self.placed:
            index.add(step)
        return index

    @cached_property
    def _first_ids(self) -> tuple[dict[int, int], dict[int, int]]:
        """First position of each first id: among all steps, and among those without messages."""
        found: tuple[dict[int, int], dict[int, int]] = {}, {}
        for at, (step, completion, _) in enumerate(self.placed):
            for positions in found if shared(step, "messages") is None else found[:1]:
                positions.setdefault(_first_id(completion), at)
        return found

    def __getstate__(self) -> dict[str, Any]:
        # Without the index: another process has other hashes of texts, and copied objects have other ids.
        return {"placed": self.placed}


class Break:
    """A step that begins a new sequence, and the steps before it. Drift, fork or root: computed on first access."""

    def __init__(self, step: Step, prompt: Span, earlier: Earlier, at: int) -> None:
        self.step = step
        self._prompt = prompt
        # `earlier` is shared by all breaks and holds later steps as well; this one is at position `at`.
        self._earlier, self._at = earlier, at

    @cached_property
    def drift(self) -> Drift | None:
        """The drift; None if the step does not continue an earlier one."""
        return self.explain(None)

    @cached_property
    def is_fork(self) -> bool:
        """Returns whether the step shares its beginning with an earlier one, without drift."""
        return self.drift is None and self._earlier.shares_start(self._at, self._prompt)

    @property
    def is_root(self) -> bool:
        """Returns whether the step shares nothing with any earlier one."""
        return self.drift is None and not self.is_fork

    def closest(self) -> tuple[Placed, int] | None:
        """The continued step that shares the most ids with the prompt, and the position of the first difference."""
        prompt = self._prompt.get()
        found = [
            (placed, common_prefix(placed[1].segment.ids(0, placed[1].stop), prompt))
            for placed in self._earlier.predecessors(self._at)
        ]
        return max(found, key=itemgetter(1), default=None)

    def explain(self, tokenizer: Any) -> Drift | None:
        """Computes ``drift`` again, with texts if a tokenizer is given."""
        placed = next(self._earlier.predecessors(self._at), None)
        if placed is None:
            return None
        previous, completion, row = placed
        before = completion.segment.ids(0, completion.stop)
        prompt = self._prompt.get()
        at = common_prefix(before, prompt)
        if at == len(before):
            # No drift: another step had extended that sequence already, or it was not the last (`linear`).
            return None
        expected, found = _ids(before, at), _ids(prompt, at)
        texts = None if tokenizer is None else (tokenizer, prompt)
        return Drift(
            step_id=self.step.id,
            previous_step_id=previous.id,
            position=at,
            kind=_kind(self.step, previous, row, at, completion.stop, texts),
            expected=expected,
            found=found,
            expected_text=None if tokenizer is None else tokenizer.decode(list(expected)),
            found_text=None if tokenizer is None else tokenizer.decode(list(found)),
        )


def drift(trajectory: Trajectory, tokenizer: Any = None, *, linear: bool = False) -> list[Drift]:
    """Finds the places where a prompt repeats an earlier completion in text, but not in token ids, and their kinds.

    Args:
        trajectory: the trajectory whose usable steps are compared: those that ``sequences()`` does not leave out.
        tokenizer: any object with ``decode(ids)``, to set ``expected_text`` and ``found_text``.
        linear: as in ``Trajectory.sequences()``.
    """
    breaks = trajectory.sequences(linear=linear).report.breaks
    return [event for one in breaks if (event := one.explain(tokenizer)) is not None]


def _first_id(span: Span) -> int:
    return int(span.segment.ids(0, 1)[0])


def _ids(array: IntArray, at: int) -> tuple[int, ...]:
    return tuple(array[at : at + SHOWN].tolist())


def _kind(step: Step, previous: Step, row: Any, at: int, end: int, texts: tuple[Any, IntArray] | None) -> DriftKind:
    """The kind of a break at token ``at``. ``texts``: the tokenizer and the prompt's ids, or None."""
    owner, begin, stop = _step_at(row, at, end) or (None, 0, 0)
    if owner is None or owner.completion is None:
        return "template"
    repetition = compare_answer(step, owner)
    # Reasoning comes first in a completion: a break at its first token is there even if the messages still have it,
    # as templates remove the reasoning of earlier turns.
    if owner.completion.reasoning and not (repetition == "same" and keeps_reasoning(step, owner) and at > begin):
        return "thinking_removed"
    if at < begin:
        return "template"
    if repetition == "changed":
        return "rewritten"
    if texts is not None and _is_same_text(*texts, owner, at, begin, stop):
        return "retokenized" if at < stop - _has_end(owner) else "template"
    if repetition != "same":
        return "tool_arguments"
    if at == stop - 1 and _has_end(owner):
        # The stop token alone differs: the template closes the answer with another one.
        return "template"
    return "tool_arguments" if _is_in_arguments(owner, at - begin, stop - begin) else "retokenized"


def _has_end(step: Step) -> bool:
    """Returns whether the last id of a completion is a stop token."""
    return step.finish_reason not in (None, "abort", *CUT_OFF)


def _is_same_text(tokenizer: Any, prompt: IntArray, owner: Step, at: int, begin: int, stop: int) -> bool:
    """Returns whether the rest of an answer, without its stop token, is the same text in a prompt."""
    sampled = owner.completion_token_ids
    assert sampled is not None
    rest = tokenizer.decode(sampled[at - begin : stop - begin - _has_end(owner)].tolist())
    # Ids that cover the rest for sure: nearly every id is at least one byte of text; ``SHOWN`` more for those without.
    again = prompt[at : at + len(rest.encode("utf-8", "replace")) + SHOWN]
    return bool(tokenizer.decode(again.tolist()).startswith(rest))


def _step_at(row: Any, at: int, end: int) -> tuple[Step, int, int] | None:
    """The step whose answer, which ends by ``end``, has token ``at``, be it in the template's opening; and its span."""
    # Completions are in order and do not overlap: the first that ends after the token is the only candidate.
    place = bisect_right(row.steps, at, key=itemgetter(2))
    if place == len(row.steps):
        return None
    step, begin, stop = row.steps[place]
    return (step, begin, stop) if stop <= end and begin - _OPENING <= at else None


def _is_in_arguments(step: Step, at: int, length: int) -> bool:
    """Estimates by shares of the characters whether a token of a completion lies in the arguments of a tool call.

    Assumed are the text first, and each call in ``_BEFORE`` and ``_AFTER`` or the like, which are no arguments.
    """
    answer = step.completion
    if answer is None or not answer.tool_calls:
        return False
    places = []
    length_so_far = len(answer.content or ())
    for call in answer.tool_calls:
        length_so_far += len(_BEFORE) + len(call.name or "")
        places.append((length_so_far, length_so_far + len(call.arguments or "")))
        length_so_far = places[-1][1] + len(_AFTER)
    return any(start * length <= at * length_so_far < stop * length for start, stop in places)
