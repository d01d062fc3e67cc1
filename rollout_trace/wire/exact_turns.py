"""Exact turns: the ids of a prompt, from the ids that an earlier step was served and sampled.

Pure. What a tokenizer has to tell is yielded as a ``Render``, and its ids are sent in; recorders do the rest.

    prompt = prompt of the earlier step + its completion + end of turn + new messages

``end of turn + new messages`` (the seam) is rendered behind a short stand-in for the history: the history itself is
never tokenised again.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Generator, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from rollout_trace.data.exact_turn import Reason
from rollout_trace.wire.message_key import calls_in, plain
from rollout_trace.wire.profiles import PROMPT_FIELDS
from rollout_trace.wire.protocols import record_of
from rollout_trace.wire.turn import COMPARED_FIELDS, Ids, Turn, written
from rollout_trace.wire.turn_index import Found

_NOT_BY_IDS: Final = {
    "documents": "the tokenizer is not given them as the chat endpoint gives them",
    "reasoning": "the chat endpoint makes template arguments of it, which the tokenizer is not given",
    "reasoning_effort": "the chat endpoint makes template arguments of it, which the tokenizer is not given",
    "truncate_prompt_tokens": "ids are not truncated",
    "truncation_side": "ids are not truncated",
}
_STORED: Final = ("conversation", "previous_input_messages", "previous_response", "previous_response_id", "prompt")
_LOOKED_AT: Final = frozenset({*_NOT_BY_IDS, *_STORED, *(one.partition(".")[0] for one in PROMPT_FIELDS.values()),
                               "echo", "add_generation_prompt", "continue_final_message", "truncation"})  # fmt: skip
"""All fields that ``check_request`` looks at."""

_STAND_IN_ID: Final = "000000000"
"""Id of a tool call in a stand-in: nine letters or digits, as Mistral's templates demand."""

FAILURE_COUNTS: Final = 600.0
"""Seconds for which a tokenizer, or a template, that does not do is not asked again."""
NO_ANSWER_COUNTS: Final = 60.0
"""The same for one that did not answer."""
_MOST_SEAMS = 256
"""Most seams, and shapes of a history's end, that are kept: those that were used longest ago go."""
_LONG = 4096
"""Ids of a seam that is not kept: a long result of a tool seldom comes again."""


class ByText(Exception):
    """A call that goes out as text.

    Args:
        reason: its code.
        detail: a sentence with what was found.
        message: index of the first message that differs from what was recorded, if that is the reason.
    """

    def __init__(self, reason: Reason, detail: str, message: int | None = None) -> None:
        super().__init__(detail)
        self.reason, self.detail, self.message = reason, detail, message
        self.counts = FAILURE_COUNTS
        """Seconds for which it is remembered, where it is: 0 for what was wrong at this moment alone."""


@dataclass(frozen=True, slots=True)
class Render:
    """Messages whose ids are asked for, as the server's chat template and tokenizer give them."""

    messages: Sequence[Mapping[str, Any]]
    is_open: bool
    """Whether the beginning of an answer follows them."""


class SeamIds(NamedTuple):
    """The ids of a seam."""

    length: int
    text: bytes
    """As JSON writes them, each behind a comma."""


Rendering = Generator[Render, Sequence[int], SeamIds]
"""Yields what is to be rendered, takes its ids, and returns those of the seam."""


@dataclass(frozen=True, slots=True)
class _Ending:
    """How a history ends that has a stand-in for its last answer."""

    head: tuple[int, ...]
    """Ids up to the end of what the stand-in says."""
    tail: tuple[int, ...]
    """Ids behind it, of the end of the turn and of the message after it."""
    opening: bytes
    """Ids of the beginning of an answer behind that, as JSON writes them, each behind a comma."""


class Seams:
    """Cache of rendered texts, for one tokenizer and template. Thread-safe."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, key: Hashable) -> Any:
        """Returns the cached value of a key, or None."""
        value = self._kept.get(key)
        if value is not None and len(self._kept) > _MOST_SEAMS // 2:
            with suppress(KeyError):  # Another thread has dropped it.
                self._kept.move_to_end(key)
        return value

    def check(self, key: Hashable) -> None:
        """Raises the ``ByText`` that was kept under a key by ``fail``, if it still counts."""
        kept = self._kept.get((key, ByText))
        if kept is not None and time.monotonic() < kept[1]:
            raise kept[0].with_traceback(None)

    def fail(self, key: Hashable, failure: ByText) -> None:
        """Keeps a failure for a while: it is not met again with each turn."""
        if failure.counts:
            self.keep((key, ByText), (failure, time.monotonic() + failure.counts))

    def keep(self, key: Hashable, value: Any) -> None:
        """Keeps a value; beyond the most, the oldest go."""
        self._kept[key] = value
        while len(self._kept) > _MOST_SEAMS:
            with suppress(KeyError):
                self._kept.popitem(last=False)


def check_request(body: Mapping[str, Any], engine: str, protocol: str) -> str:
    """Returns the field for the ids of this form of request.

    Raises:
        ByText: it cannot be served by ids.
    """
    field = PROMPT_FIELDS.get((engine, protocol))
    if field is None:
        raise ByText("engine", f"{engine} is not known to take ids in {protocol}.")
    if body.keys().isdisjoint(_LOOKED_AT):
        return field
    if body.get(field.partition(".")[0]) is not None:
        raise ByText("field_in_use", f"the request has a {field.partition('.')[0]!r} of its own.")
    if body.get("echo"):
        raise ByText("echo", "with echo the engine ignores ids without an error.")
    if body.get("continue_final_message") or body.get("add_generation_prompt") is False:
        raise ByText("continued", "the request continues its last message.")
    if any(body.get(name) for name in _STORED):
        raise ByText("stored", "the server holds the first messages of the request.")
    for name, why in _NOT_BY_IDS.items():
        if body.get(name) is not None:
            raise ByText("field", f"{name} is set: {why}.")
    if body.get("truncation") not in (None, "disabled"):
        raise ByText("field", "truncation is set: ids are not truncated.")
    return field


def prompt_of(protocol: str, body: Mapping[str, Any]) -> tuple[list[Any] | None, Any]:
    """The messages of a request's body, as a step has them, and its tools."""
    layout = record_of(protocol).request
    messages = body.get(layout.messages)
    messages = [messages] if layout.text and isinstance(messages, str) else messages
    if not isinstance(messages, (list, tuple)):
        return None, None
    system = None if layout.system is None else body.get(layout.system)
    if system is not None:
        messages = [{"role": "system", "content": system}, *messages]
    return messages if type(messages) is list else [*messages], body.get("tools")


def check_turn(turn: Turn, protocol: str, server: str, body: Mapping[str, Any], tools: Any) -> Ids:
    """Checks that the ids of a turn begin the prompt of a request that continues it, and returns them.

    Raises:
        ByText: they do not.
    """
    if turn.server != server:
        raise ByText("settings_changed", "the earlier call was made to another server.")
    if turn.protocol != protocol:
        raise ByText("settings_changed", f"the earlier call was one of {turn.protocol}.")
    if body.get("model") != turn.model:
        raise ByText("settings_changed", f"the request names the model {body.get('model')!r}, not {turn.model!r}.")
    if (tools or None) != turn.tools:
        raise ByText("settings_changed", "the tools are not those of the earlier call.")
    for name in COMPARED_FIELDS if turn.fields or not body.keys().isdisjoint(COMPARED_FIELDS) else ():
        if (body.get(name) or None) != turn.fields.get(name):
            raise ByText("settings_changed", f"{name} is not that of the earlier call.")
    if turn.ids is None:
        named = f"the step {turn.step.id}, which the request continues,"
        raise ByText("no_ids", f"{named} has no ids of prompt and completion.")
    return turn.ids


class Seam:
    """The rendered text after a completion: what was added to it, its end of turn, the new messages.

    Args:
        found: what is continued, and what follows it.
        turn: that of ``found``, which has passed ``check_turn``.
        ids: of the turn.
        seams: what was rendered before.
    """

    def __init__(self, found: Found, turn: Turn, ids: Ids, seams: Seams) -> None:
        answer, calls = found.answer, calls_in(found.answer) if found.answer.get("tool_calls") else ()
        names = tuple([str(name) for name, _, _ in calls])
        self._kind = _Kind(bool(answer.get("content")) or not names, names, turn.leads)
        self._call_ids = tuple([str(one) for _, _, one in calls])
        self._found, self._turn, self._last = found, turn, ids.last
        self._settings, self._seams = turn.settings, seams
        new = plain(found.new)
        new = new if len(new) <= _LONG else blake2b(new, digest_size=16).digest()
        self._key = (self._settings, self._kind, self._call_ids, found.added, ids.last, turn.is_cut, new)

    def known(self) -> SeamIds | None:
        """Returns the seam where all of it was rendered before.

        Raises:
            ByText: the template does not fit.
        """
        of_text: _Ending | None = self._seams.get((self._settings, self._kind.of_text, None))
        if of_text is None:
            return None
        self._check(of_text)
        kept: SeamIds | None = self._seams.get(self._key)
        return kept

    def rendering(self) -> Rendering:
        """Renders what is not known.

        Raises:
            ByText: the template does not fit.
        """
        self._check((yield from self._ending(self._kind.of_text)))
        self._seams.check(self._key)
        try:
            ending, rest = yield from self._rest()
            begin = 0 if self._found.added else (yield from self._begin(rest, ending, self._last, self._turn.is_cut))
        except ByText as failure:
            self._seams.fail(self._key, failure)
            raise
        found = SeamIds(len(rest) - begin, _behind_commas(rest[begin:]))
        if found.length <= _LONG:
            self._seams.keep(self._key, found)
        return found

    def _check(self, of_text: _Ending) -> None:
        """Checks that the earlier prompt begins its answer as the stand-in does, which has the calls of all results.

        Some templates look far back: for ``/no_think`` in the system prompt, for the name of a result's tool.
        """
        for one in self._found.new:
            if one.get("tool_call_id") is not None and str(one["tool_call_id"]) not in self._call_ids:
                raise ByText("template", "a tool result belongs to a call that is not in the last answer.")
        opening = of_text.opening
        if self._turn.is_behind_results:
            opening = self._seams.get((self._settings, self._kind.leads, "behind results")) or opening
        if not self._turn.prompt_end.endswith(opening):
            raise ByText("template", _FAR_BACK)

    def _rest(self) -> Generator[Render, Sequence[int], tuple[_Ending, tuple[int, ...]]]:
        """How a history of this kind ends, and what is rendered behind its stand-in."""
        writes_ids = self._seams.get((self._settings, "writes ids"))
        ending = yield from self._ending(self._kind, self._call_ids if writes_ids else None)
        history = _history(self._kind, "y", self._call_ids, self._found.added)
        rendered = tuple((yield Render([*history, *self._found.new], True)))
        if self._kind.calls and rendered[: len(ending.head)] != ending.head:
            # Some templates write the ids of tool calls down: Kimi's, Mistral's.
            ending = yield from self._ending(self._kind, self._call_ids)
            self._seams.keep((self._settings, "writes ids"), rendered[: len(ending.head)] == ending.head)
        if rendered[: len(ending.head)] != ending.head:
            raise ByText("template", _LOOKS_BACK)
        return ending, rendered[len(ending.head) :]

    def _begin(
        self, rest: tuple[int, ...], ending: _Ending, last: int, is_cut: bool
    ) -> Generator[Render, Sequence[int], int]:
        """Where in ``rest`` begins what the completion does not have: behind its own end of turn, or with it."""
        shared = rest[: _common(rest, ending.tail)]
        of_text = yield from self._ending(self._kind.of_text)
        end = of_text.tail[0]
        if end not in shared and last in shared and self._turn.step.stop_reason == last:
            # Turns without an end of their own: the token of the role behind them stopped it, as GLM's.
            return shared.index(last) + 1
        if end not in shared:
            raise ByText("end_of_turn", "the end of a turn was not found in what the template renders.")
        if last != end and last in shared and not is_cut:
            # It ended the completion, and in the template it is something else.
            raise ByText("end_of_turn", f"the completion ends with the id {last}; a turn of the template with {end}.")
        # Without it the completion was cut, or ended by another of the model's ends: vLLM stops at each of them.
        return shared.index(end) + (last == end)

    def _ending(self, kind: _Kind, ids: tuple[str, ...] | None = None) -> Generator[Render, Sequence[int], _Ending]:
        """Renders a stand-in that says one thing and one that says another: they differ in that alone.

        What comes after it must change nothing before: a longer one is rendered too.
        ``ids`` are those of its tool calls, where the template writes them down.
        """
        key = (self._settings, kind, ids)
        kept: _Ending | None = self._seams.get(key)
        if kept is not None:
            return kept
        self._seams.check(key)
        try:
            found = yield from _learnt(kind, ids)
        except ByText as failure:
            self._seams.fail(key, failure)
            raise
        self._seams.keep(key, found)
        if kind.calls:
            self._seams.keep((self._settings, kind.leads, "behind results"), found.opening)
        return found


def _learnt(kind: _Kind, ids: tuple[str, ...] | None) -> Generator[Render, Sequence[int], _Ending]:
    ids = ids or (_STAND_IN_ID,) * len(kind.calls)
    history, reply = _history(kind, "y", ids), _reply(ids)
    one = yield Render([*history, *reply], False)
    two = yield Render([*_history(kind, "z", ids), *reply], False)
    # As a run goes on: some templates write answers otherwise once a message of the user comes after them.
    longer = yield Render([*history, *reply, *history[-1:], *reply], True)
    if [*longer[: len(one)]] != [*one]:
        raise ByText("template", _LOOKS_BACK)
    n_tail = _common(one[::-1], two[::-1])
    if _common(one, two) >= len(one) - n_tail or not n_tail:
        raise ByText("template", "the template renders two different answers alike.")
    tail = [*one[len(one) - n_tail :]]
    ends = (at for at in range(len(longer), len(one), -1) if [*longer[at - n_tail : at]] == tail)
    end = next(ends, None)
    if end is None:
        # The second time it was rendered otherwise: some templates number the rounds.
        raise ByText("template", _FAR_BACK)
    return _Ending(tuple(one[: len(one) - n_tail]), tuple(tail), _behind_commas(longer[end:]))


_LOOKS_BACK: Final = "how the template renders earlier messages depends on what comes after them."
_FAR_BACK: Final = "how the template renders new messages depends on messages far before them."


class _Kind(NamedTuple):
    """Properties by which a template may distinguish answers."""

    has_text: bool
    calls: tuple[str, ...]
    """Names of the tools that are called."""
    leads: str | None
    """The role of the system prompt; None without one. Some templates write it before the last message of the user."""

    @property
    def of_text(self) -> _Kind:
        """Itself; of an answer with calls that of a text. Behind results a system prompt stays where it is."""
        return _Kind(True, (), None) if self.calls else self


def _history(kind: _Kind, said: str, ids: Sequence[str], added: str = "") -> list[dict[str, Any]]:
    """A message of the user and an answer that says one letter: as text, or as the argument of its last call.

    Behind a system prompt, where the conversation has one.
    """
    answer: dict[str, Any] = {"role": "assistant", "content": f"{said}{added}"}
    if kind.calls:
        answer["content"] = "x" if kind.has_text else ""
        answer["tool_calls"] = [
            {"id": one, "type": "function", "function": {"name": name, "arguments": f'{{"a": "{said}"}}'}}
            for name, one in zip(kind.calls, ids, strict=True)
        ]
    first = [] if kind.leads is None else [{"role": kind.leads, "content": "x"}]
    return [*first, {"role": "user", "content": "x"}, answer]


def _reply(ids: Sequence[str]) -> list[dict[str, Any]]:
    """Returns what follows an answer: the results of its calls, or the user."""
    results = [{"role": "tool", "tool_call_id": one, "content": "w"} for one in ids]
    return results or [{"role": "user", "content": "w"}]


def _behind_commas(ids: Sequence[int]) -> bytes:
    return b",%b" % written(ids) if ids else b""


def _common(one: Sequence[int], two: Sequence[int]) -> int:
    """Length of the common beginning."""
    pairs = zip(one, two, strict=False)
    return next((at for at, (left, right) in enumerate(pairs) if left != right), min(len(one), len(two)))


__all__ = ["ByText", "Render", "Rendering", "Seam", "SeamIds", "Seams", "check_request", "check_turn", "prompt_of"]
