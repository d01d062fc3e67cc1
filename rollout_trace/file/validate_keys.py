"""Whether an object of a line has a name twice, which decoders pass over: found by counting, without a second parse."""

from __future__ import annotations

import re
from operator import attrgetter
from typing import Any

import msgspec
import orjson

from rollout_trace.file.decode import Parsed
from rollout_trace.file.records import TokensRecord

_objects = msgspec.json.Decoder(dict[str, msgspec.Raw])
_lists = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
# Expressions, which are searched for three times as fast as `bytes.count` and `in` search.
_KEY = re.compile(rb'":')
"""The end of a name. Within a text, the bytes before it are a backslash more, in a line and in what is made of it."""
_ESCAPED_KEY = re.compile(rb"\\u00(?:22|3[aA])")
"""A quote or a colon in a form in which nothing writes them, and which what is made of a line has as itself."""
_LARGE = 1 << 20
_COUNTED = frozenset(("messages", "tools", "segments", "steps", "arrays"))
_FAILED = (msgspec.DecodeError, ValueError, TypeError, RecursionError)


def has_distinct_keys(line: bytes, parsed: Parsed) -> bool:
    """True where no object of a line has a name twice. False: there may be one, or the line is written in another way
    than usual; a parse with all names can say.

    A decoder that keeps one value of a name leaves fewer names than the line has. The objects of alternatives
    (``top_logprobs``), as engines send them, are not looked at.
    """
    record = parsed.record
    try:
        top = _objects.decode(line)
        steps = _lists.decode(top["steps"]) if "steps" in top else []
        count = len(top) + 3 * len(record.arrays) + _dumped(record.messages) + _dumped(record.tools)
        count += sum([1 if one.base is None else 2 for one in record.segments])
        for step, alternatives in zip(record.steps, parsed.top_logprobs, strict=True):
            if step.tokens is not None:
                count += _keys_of_tokens(step.tokens)
            if alternatives:
                count += 1 + _count(alternatives)
        others = [value for name, value in top.items() if name not in _COUNTED]
        for names in steps:
            count += len(names)
            names.pop("tokens", None)
            others += names.values()
        # Together, which is quicker, unless the copies would be large.
        joined = [b"[%s]" % b",".join(others)] if len(line) < _LARGE else (bytes(one) for one in others)
        count += sum(_dumped(orjson.loads(one)) for one in joined)
    except _FAILED:
        return False
    return count == _count(line) and _ESCAPED_KEY.search(line) is None


def has_distinct_plain_keys(line: bytes) -> bool:
    """The same of a short line of any kind, which is parsed for it."""
    try:
        return _dumped(orjson.loads(line)) == _count(line) and _ESCAPED_KEY.search(line) is None
    except _FAILED:
        return False


def _dumped(value: Any) -> int:
    return _count(orjson.dumps(value)) if value else 0


def _count(text: bytes) -> int:
    # Of a large text all that is found would fill memory.
    return len(_KEY.findall(text)) if len(text) < _LARGE else text.count(b'":')


_fields = attrgetter(*(name for name in TokensRecord.__struct_fields__ if name != "top_logprobs"))


def _keys_of_tokens(tokens: TokensRecord) -> int:
    """How many names ``tokens`` has, those of the objects in it included; without alternatives."""
    values = _fields(tokens)
    count = len(values) - values.count(None)
    if tokens.prompt_top_tokens is not None:
        count += 2
    if tokens.top_tokens is not None:
        count += 2 * 4
    if tokens.sampling_mask is not None:
        count += 4 * (2 if tokens.sampling_mask.logprobs is None else 3)
    return count
