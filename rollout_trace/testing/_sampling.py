"""Converts a reply into sampled tokens: ids, logprobs, and the text that each token adds to the message."""

from __future__ import annotations

import codecs
import hashlib
import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .script import Reply
from .tokenizer import AnyTokenizer, Part, PartKind


class Effect(NamedTuple):
    """The text that a token adds to one field of the message."""

    kind: PartKind
    text: str
    call: int


@dataclass(frozen=True)
class Token:
    """One sampled token."""

    id: int
    text: str  # as the engine detokenizes it: empty inside a UTF-8 character, all of it at the last byte
    effect: Effect | None
    logprobs: tuple[float, ...]  # one, unless the reply has more or fewer logprobs than tokens
    digest: bytes  # of the seed and all ids up to this one


def text_in(tokens: Sequence[Token], kind: PartKind, call: int = 0) -> str:
    """Returns the text that tokens add to one field of the message."""
    effects = (token.effect for token in tokens)
    return "".join(e.text for e in effects if e and e.kind == kind and e.call == call)


@dataclass(frozen=True)
class Completion:
    """One choice of a response."""

    reply: Reply
    tokens: list[Token]
    finish_reason: str
    stop_reason: str | int | None
    call_count: int  # complete tool calls
    call_cut: bool  # ended inside a tool call

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]

    def text(self, kind: PartKind, call: int = 0) -> str:
        """The text of one field of the message."""
        return text_in(self.tokens, kind, call)


@dataclass(frozen=True)
class Sampler:
    """Samples completions. The same reply to the same prompt gives the same tokens and logprobs, in any process."""

    tokenizer: AnyTokenizer
    seed: int

    def sample(self, reply: Reply, prompt: Sequence[int], request: Mapping[str, Any]) -> Completion:
        """The completion of a prompt, cut at the request's `max_tokens` and `stop`."""
        steps = list(self._walk(self._parts(reply)))
        limit = request.get("max_completion_tokens") or request.get("max_tokens")
        stop = request.get("stop") or []
        steps, stopped_by = _cut_at_stop(steps, [stop] if isinstance(stop, str) else stop)
        cut = limit is not None and len(steps) > limit
        if cut:
            steps, stopped_by = steps[:limit], None
        begun = _count(steps, "call_begin")
        ended = _count(steps, "call_end")
        reason = "length" if cut else "tool_calls" if ended and stopped_by is None else "stop"
        stop_reason = reply.stop_reason if stopped_by is None else stopped_by
        tokens = list(self._with_logprobs(steps, reply, prompt))
        return Completion(reply, tokens, reply.finish_reason or reason, stop_reason, ended, begun > ended)

    def _parts(self, reply: Reply) -> list[Part]:
        if reply.token_ids is not None:
            return [Part("content", list(reply.token_ids))]
        calls = [{"function": {"name": name, "arguments": arguments}} for name, arguments in reply.tool_calls]
        message = {"reasoning": reply.reasoning, "content": reply.text, "tool_calls": calls}
        parts = self.tokenizer.assistant_parts(message)
        return parts if reply.finish_reason == "length" else [*parts, Part("template", [self.tokenizer.eos_token_id])]

    def _walk(self, parts: Sequence[Part]) -> Iterator[_Step]:
        """Each id with its text and its effect. Text comes when a UTF-8 character is complete, as in vLLM."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for part in parts:
            name = ""
            for at, token_id in enumerate(part.ids):
                if self.tokenizer.is_special(token_id):
                    decoder.reset()
                    text, spelt = self.tokenizer.decode([token_id]), ""
                else:
                    text = spelt = decoder.decode(self.tokenizer.token_bytes(token_id))
                name += spelt
                yield _Step(token_id, text, _effect(part, at, spelt, name))

    def _with_logprobs(self, steps: Sequence[_Step], reply: Reply, prompt: Sequence[int]) -> Iterator[Token]:
        state = hashlib.blake2b(f"{self.seed}:".encode() + struct.pack(f"<{len(prompt)}I", *prompt), digest_size=32)
        last = len(steps) - 1
        for at, (token_id, text, effect) in enumerate(steps):
            state.update(struct.pack("<I", token_id))
            digest = state.digest()
            logprobs: tuple[float, ...] = (_logprob(digest),)
            if reply.logprobs is not None:
                # The last token takes the surplus: a reply may have more logprobs than tokens.
                logprobs = tuple(reply.logprobs[at:] if at == last else reply.logprobs[at : at + 1])
            yield Token(token_id, text, effect, logprobs, digest)

    def score(self, prompt: Sequence[int]) -> list[float | None]:
        """A logprob for each id of a prompt but the first, which nothing comes before."""
        state = hashlib.blake2b(f"{self.seed}:prompt:".encode(), digest_size=32)
        scored: list[float | None] = []
        for token_id in prompt:
            state.update(struct.pack("<I", token_id))
            scored.append(_logprob(state.digest()) if scored else None)
        return scored

    def alternatives(self, token: Token, count: int) -> list[tuple[int, float]]:
        """`count` other ids with their logprobs, most likely first; all probabilities with the token's sum to < 1."""
        size = self.tokenizer.vocab_size
        rest = math.log(-math.expm1(_logprob(token.digest)))
        stride = 1 + token.digest[8] % 7
        ids = ((token.id + stride * (i + 1)) % size for i in range(count))
        return [(token_id, _float32(rest - (i + 1) * math.log(2))) for i, token_id in enumerate(ids)]


class _Step(NamedTuple):
    id: int
    text: str
    effect: Effect | None


def _effect(part: Part, at: int, spelt: str, name: str) -> Effect | None:
    if part.texts is not None:
        text = part.texts[at]
        return None if text is None else Effect(part.kind, text, part.call)
    if part.kind in ("content", "reasoning", "call_arguments"):
        return Effect(part.kind, spelt, part.call)
    if part.kind == "call_begin":
        return Effect(part.kind, "", part.call) if at == 0 else None
    if part.kind in ("call_name", "call_end"):
        # the name is known, and the call is complete, only with the last id
        text = json.loads(name) if part.kind == "call_name" and at == len(part.ids) - 1 else ""
        return Effect(part.kind, text, part.call) if at == len(part.ids) - 1 else None
    return None


def _count(steps: Sequence[_Step], kind: PartKind) -> int:
    return sum(1 for step in steps if step.effect is not None and step.effect.kind == kind)


def _cut_at_stop(steps: list[_Step], stops: Sequence[str]) -> tuple[list[_Step], str | None]:
    """Cut at the first stop string in the content: its tokens are kept, its text is removed."""
    text = ""
    for end, step in enumerate(steps):
        if step.effect is None or step.effect.kind != "content" or not step.effect.text:
            continue
        text += step.effect.text
        found = [(text.index(stop), stop) for stop in stops if stop in text]
        if found:
            at, stop = min(found)
            return _trim(steps[: end + 1], at), stop
    return steps, None


def _trim(steps: list[_Step], length: int) -> list[_Step]:
    """Keep `length` characters of the content."""
    trimmed = []
    for step in steps:
        effect = step.effect
        if effect is not None and effect.kind == "content":
            kept = effect.text[:length]
            length -= len(kept)
            step = step._replace(effect=effect._replace(text=kept))
        trimmed.append(step)
    return trimmed


def _logprob(digest: bytes) -> float:
    """A number from -4 to just under 0, representable as float32, as logprobs of an engine are."""
    return _float32(-4.0 * int.from_bytes(digest[:4], "little") / 2**32 - 2**-10)


def _float32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])
