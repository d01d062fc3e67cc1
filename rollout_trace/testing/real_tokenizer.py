"""``RealTokenizer``: a trained tokenizer and its chat template, for the ids of a scripted server."""

from __future__ import annotations

import codecs
import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from rollout_trace.wire.chat_template import Render, for_template, jinja, load, name_of

from .tokenizer import ByteTokenizer, Part


class Field(NamedTuple):
    """Where a field of the message is in the text of the template."""

    kind: Any
    call: int
    begin: int
    end: int
    shown: str  # what a client sees of it


def fields_of(message: Mapping[str, Any], text: str) -> list[Field] | None:
    """The fields in their order; None where one is not found."""
    wanted: list[tuple[Any, int, list[str], str]] = []
    for kind, value in (("reasoning", message.get("reasoning")), ("content", message.get("content"))):
        if value:
            wanted.append((kind, 0, [str(value)], str(value)))
    for at, call in enumerate(message.get("tool_calls") or ()):
        name, arguments = call["function"]["name"], call["function"].get("arguments") or ""
        wanted.append(("call_name", at, [name], name))
        wanted.append(("call_arguments", at, _spellings(arguments), arguments))
    found: list[Field] = []
    cursor = 0
    for kind, number, spellings, shown in wanted:
        places = [(text.find(one, cursor), one) for one in spellings if text.find(one, cursor) >= 0]
        if not places:
            return None
        begin, spelling = min(places, key=lambda place: (place[0], -len(place[1])))
        cursor = begin + len(spelling)
        found.append(Field(kind, number, begin, cursor, shown))
    return found


def _spellings(arguments: str) -> list[str]:
    """How templates write arguments: as they are, or as JSON again."""
    try:
        value = json.loads(arguments)
    except ValueError:
        return [arguments]
    dense = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return list(dict.fromkeys([arguments, json.dumps(value, ensure_ascii=False), dense]))


def parts_of(ids: Sequence[int], pieces: Sequence[str], fields: Sequence[Field]) -> list[Part] | None:
    """Splits ids into runs by field. A token that is in a field and beside it belongs to the field.

    None where two fields share a token, or a call has no token before or after it.
    """
    ends = list(accumulate(map(len, pieces)))
    begins = [end - len(piece) for end, piece in zip(ends, pieces, strict=True)]
    parts: list[Part] = []
    at = 0
    for field in fields:
        # Those before it end where it begins, or earlier; its own begin before its end.
        first, last = max(at, bisect_right(ends, field.begin)), bisect_left(begins, field.end)
        between, own = list(ids[at:first]), list(ids[first:last])
        if not own or begins[first] > field.begin:
            return None
        if field.kind == "call_name" and not _split(parts, between, field.call):
            return None
        if field.kind != "call_name" and between:
            parts.append(Part("template", between))
        spans = list(zip(begins, pieces, strict=True))[first:last]
        parts.append(Part(field.kind, own, field.call, _shown(field, spans)))
        at = last
    rest = list(ids[at:])
    if fields and fields[-1].kind == "call_arguments":
        if not rest:
            return None
        parts.append(Part("call_end", [rest.pop(0)], fields[-1].call, [""]))
    return [*parts, Part("template", rest)] if rest else parts


def _split(parts: list[Part], between: list[int], call: int) -> bool:
    """Add the ids before a call: the end of the call before it, and its own beginning. False: there are too few."""
    if len(between) < (2 if call else 1):
        return False
    if call:
        parts.append(Part("call_end", [between.pop(0)], call - 1, [""]))
    parts.append(Part("call_begin", between, call, ["", *[None] * (len(between) - 1)]))
    return True


def _shown(field: Field, spans: Sequence[tuple[int, str]]) -> list[str]:
    """What each token adds to the field. One that is spelled anew comes whole, with its last token."""
    own = [text[max(0, field.begin - begin) : field.end - begin] for begin, text in spans]
    if field.kind == "call_name" or "".join(own) != field.shown:
        return [*[""] * (len(own) - 1), field.shown]
    return own


_USER = {"role": "user", "content": "."}
_CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n{{ {'name': c.function.name, 'arguments': c.function.arguments}"
    " | tojson }}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_END_TOKENS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|endoftext|>", "</s>")


class RealTokenizer:
    """A tokenizer of `tokenizers` or `transformers`, for `ScriptedServer(tokenizer=...)`.

    `source` is a folder with `tokenizer.json`, the path of such a file, a `tokenizers.Tokenizer`, or a tokenizer of
    `transformers`. `chat_template` is a template in Jinja, which needs the package jinja2; default: the folder's
    (`chat_template.jinja`, or in `tokenizer_config.json`) or the tokenizer's, otherwise ChatML. `end_token` ends a
    message; default: the `eos_token` of the configuration, otherwise a well-known one in the vocabulary.

    The ids of an answer are those that template and tokenizer produce for its message. The next prompt, which includes
    the message, therefore begins with them, if the template allows it: if the template drops the thoughts of earlier
    answers, for example, the ids differ, as with a real engine. If the template does not render the message unchanged
    (it trims text), the answer has the ids of ChatML.

    Raises:
        ImportError: a package is missing.
        ValueError: the source is not a tokenizer, or its end token is unknown.
    """

    def __init__(self, source: Any, *, chat_template: str | None = None, end_token: str | None = None) -> None:
        self._tokenizer, render, config = load(source)
        template = chat_template or config.get("chat_template")
        if render is None or chat_template is not None:
            render = jinja(template if isinstance(template, str) else _CHATML, config)
        self._render: Render = render
        self._specials = {
            one: token.content for one, token in self._tokenizer.get_added_tokens_decoder().items() if token.special
        }
        end = end_token or name_of(config.get("eos_token"))
        ends = [end] if end else [one for one in _END_TOKENS if self._tokenizer.token_to_id(one) is not None]
        found = self._tokenizer.token_to_id(ends[0]) if ends else None
        if found is None:
            raise ValueError(f"the end token {end!r} is not in the vocabulary: give `end_token` one that is")
        self._end, self._end_text = int(found), ends[0]
        self._bytes = _spelling(self._tokenizer)
        self._known: dict[int, bytes] = {}
        self._steps = ByteTokenizer()

    @property
    def vocab_size(self) -> int:
        """Number of ids in the vocabulary, including added tokens."""
        return int(self._tokenizer.get_vocab_size())

    @property
    def eos_token_id(self) -> int:
        """Id of the token that ends a message."""
        return self._end

    def is_special(self, token_id: int) -> bool:
        """Returns whether an id is a special token."""
        return token_id in self._specials

    def token_bytes(self, token_id: int) -> bytes:
        """Returns the bytes of one id. Raises ValueError for an id outside the vocabulary."""
        found = self._known.get(token_id)
        if found is None:
            if self._tokenizer.id_to_token(token_id) is None:
                raise ValueError(f"token id {token_id} is not in the vocabulary: use 0 to {self.vocab_size - 1}")
            found = self._known[token_id] = self._bytes(token_id)
        return found

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Returns the ids of a text. The text of a special token becomes its id only if `special` is true."""
        if special or not any(token in text for token in self._specials.values()):
            return list(self._tokenizer.encode(text, add_special_tokens=False).ids)
        # A special token in a text of the user is cut in two, each of which is encoded by itself.
        first = min((text.find(token), token) for token in self._specials.values() if token in text)
        cut = first[0] + 1
        return [*self.encode(text[:cut]), *self.encode(text[cut:])]

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> str:
        """Returns the text of ids."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """Returns the ids of a conversation; by default they end with the beginning of the answer."""
        text = self._render([for_template(one) for one in messages], tools, add_generation_prompt)
        return self.encode(text, special=True)

    def assistant_parts(self, message: Mapping[str, Any]) -> list[Part]:
        """Returns the ids of an assistant message without its end token, split by the field that each part encodes."""
        return self._rendered_parts(message) or self._plain_parts(message)

    def _rendered_parts(self, message: Mapping[str, Any]) -> list[Part] | None:
        """The parts as the template writes them; None where the message cannot be found in what it writes."""
        answer = for_template({"role": "assistant", **message})
        try:
            before = self._render([_USER], None, True)
            whole = self._render([_USER, answer], None, False)
        except ValueError:
            return None  # a template that wants other messages before the answer, say
        end = whole.rfind(self._end_text)
        if not whole.startswith(before) or end < len(before):
            return None
        text = whole[len(before) : end]
        fields = fields_of(message, text)
        if fields is None:
            return None
        # Encoded with what comes before it: that is how the next prompt is encoded.
        known = self.encode(before, special=True)
        ids = self.encode(before + text, special=True)
        ids = ids[len(known) :] if ids[: len(known)] == known else self.encode(text, special=True)
        pieces = self._pieces(ids)
        return None if "".join(pieces) != text else parts_of(ids, pieces, fields)

    def _pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each id; of a character in several, the last one has it."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return [self._specials[one] if one in self._specials else decoder.decode(self.token_bytes(one)) for one in ids]

    def _plain_parts(self, message: Mapping[str, Any]) -> list[Part]:
        """The parts of ChatML, each encoded by itself."""
        parts = self._steps.assistant_parts(message)
        return [
            Part(part.kind, self.encode(self._steps.decode(part.ids), special=part.kind in _MARKS), part.call)
            for part in parts
        ]


_MARKS = ("template", "call_begin", "call_end")


def _spelling(tokenizer: Any) -> Callable[[int], bytes]:
    """The bytes of an id: of a byte-level vocabulary, or of texts with marks for blanks and bytes."""
    from rollout_trace.view.token_pieces import ByteLevel

    byte_level = ByteLevel.of(tokenizer)
    if byte_level is not None:
        return byte_level.bytes_of

    def spelled(token_id: int) -> bytes:
        token = tokenizer.id_to_token(token_id)
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes([int(token[3:5], 16)])
        return str(token).replace("\u2581", " ").encode()

    return spelled
