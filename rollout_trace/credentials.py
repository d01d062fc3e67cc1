"""The keys that this process's clients send: remembered where a request goes out, cut out of whatever comes back.

A server's error may repeat the key that it refuses, an agent's tool may print its environment, a model may repeat what
it was sent. Nothing that is recorded holds such a key: each place of it is replaced by ``MASK``.

What counts as a key: a text of 8 characters or more, with a letter and a digit, five different characters and no space.
That leaves out what servers without keys are given (``EMPTY``, ``none``, ``not-needed``, ``lm-studio``, ``ollama``),
which could be words of a prompt.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from rollout_trace._threads import lock_for

MASK = "[redacted]"
"""Stands where a text was cut."""
LIMIT = 1000
"""Most keys that are remembered; the ones learned first are forgotten first."""
SHORTEST = 8
"""Characters of the shortest text that counts as a key."""

SECRET_HEADERS = "ROLLOUT_TRACE_SECRET_HEADERS"
"""The environment variable with the names of ``add_secret_headers``, with commas between them: for child processes."""
_USUAL = frozenset(
    {
        "authorization",
        "proxy-authorization",
        "x-api-key",
        "api-key",
        "x-goog-api-key",
        "x-amz-security-token",
        "ocp-apim-subscription-key",
        "x-auth-token",
    }
)
_header_names: frozenset[str] = _USUAL
_headers: frozenset[bytes] = frozenset(name.encode() for name in _USUAL)
"""The headers whose values hold keys, as HTTP libraries have their names."""
_ATTRIBUTES = ("api_key", "auth_token", "admin_api_key", "webhook_secret", "webhook_key")
"""Where the clients of openai and anthropic hold what they send."""
_UNSENT_SCHEMES = ("aws4-", "digest ", "signature ")
"""Schemes of ``authorization`` that send a signature, another one each time, and not the key."""
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PARAMETER = re.compile(rb"(?:^|&)(?:key|api[-_]?key|access_token|token|subscription-key)=([^&]+)", re.I)

# Reentrant: the garbage collector may close a stream, and so record a call, while it is held. A forked process, which
# has the same clients, keeps the keys.
_lock = lock_for(__name__)
_seen: set[bytes | str] = set()
"""Values met, as they stood in a header or a client, keys or not."""
_keys: dict[str, None] = {}
"""The keys, oldest first."""
_texts: tuple[str, ...] = ()
"""What texts are searched for, longest first: a key that contains another is cut whole."""
_bytes: tuple[bytes, ...] = ()
"""The same for JSON and other bytes."""


def header_names(names: Any) -> tuple[str, ...]:
    """The names of headers that a user gave, in lower case.

    Raises:
        TypeError: it is no name and no list of names.
        ValueError: one cannot be the name of a header.
    """
    example = 'give the names of request headers, such as secret_headers=["cookie", "x-my-authorization"]'
    given = [names] if isinstance(names, str) else names
    if isinstance(given, (bytes, dict)) or not isinstance(given, Iterable):
        raise TypeError(f"secret_headers is {names!r:.80} ({type(names).__name__}); {example}.")
    found = []
    for name in given:
        if not isinstance(name, str):
            raise TypeError(f"secret_headers has {name!r:.80} ({type(name).__name__}); {example}.")
        if not _NAME.fullmatch(name):
            raise ValueError(f"secret_headers has {name!r:.80}, which is not the name of a header; {example}.")
        found.append(name.lower())
    return tuple(found)


def add_secret_headers(names: Iterable[str]) -> None:
    """Learns keys from these additional request headers (lower-case names); each part of a cookie is a key."""
    global _header_names, _headers
    with _lock:
        _header_names = _header_names | frozenset(names)
        _headers = frozenset(name.encode() for name in _header_names)


def secret_headers() -> str:
    """The names that were added, as ``SECRET_HEADERS`` holds them."""
    return ",".join(sorted(_header_names - _USUAL))


def remember_sent(message: Any) -> None:
    """Remembers the keys in the request of a response, or of an exception, of httpx or httpx2. Never raises.

    Not in one that is yet to be sent: ``auth=`` and a password in the address are added last, and no key comes back
    sooner. On the path of every call: a value that was met before costs one look-up.
    """
    try:
        request = message.request
        # Several times as fast as the public `raw`, which is there if this is not.
        items = getattr(request.headers, "_list", None)
        if items is None:
            items = [(name, name.lower(), value) for name, value in request.headers.raw]
        for _, name, value in items:
            if name in _headers and value not in _seen:
                _learn_header(value, has_parts=name.decode() not in _USUAL)
        if query := request.url.query:
            remember_query(query)
    except Exception:  # No request: an exception of another kind, or a property that raises.
        pass


def remember_request(headers: Any, query: str) -> None:
    """Remembers the keys in a request that was sent. Never raises.

    Args:
        headers: a mapping with case-insensitive names, of another library than httpx.
        query: of the address.
    """
    try:
        for name in _header_names:
            value = headers.get(name)
            if value is not None:
                value = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")
                if value not in _seen:
                    _learn_header(value, has_parts=name not in _USUAL)
        if query:
            remember_query(query.encode())
    except Exception:  # Headers of another kind, or an object of a user's that raises.
        pass


def remember_query(query: bytes) -> None:
    """Remembers the keys in the query of an address (``key=...``, as Google's APIs take it)."""
    for value in _PARAMETER.findall(query):
        if value not in _seen:
            from urllib.parse import unquote_to_bytes

            _note(value, [_text(value), _text(unquote_to_bytes(value))])


def remember_client(client: Any) -> None:
    """Remembers the keys that a client object holds. Never raises."""
    for name in _ATTRIBUTES:
        try:
            value = getattr(client, name, None)
        except Exception:  # A property of the SDK's, or of a user's subclass.
            continue
        if isinstance(value, str) and value not in _seen:
            _note(value, [value])


def remember(*values: str) -> None:
    """Remembers texts as keys, if they count as such."""
    for value in values:
        if value not in _seen:
            _note(value, [value])


def forget_all() -> None:
    """Forgets every key, and every header that was added. For tests."""
    global _texts, _bytes, _header_names, _headers
    with _lock:
        _header_names, _headers = _USUAL, frozenset(name.encode() for name in _USUAL)
        _seen.clear()
        _keys.clear()
        _texts, _bytes = (), ()


def is_key(text: str) -> bool:
    """Returns whether a text counts as a key; see the module."""
    return (
        len(text) >= SHORTEST
        and len(set(text)) >= 5
        and any(one.isdigit() for one in text)
        and any(one.isalpha() for one in text)
        and not any(one.isspace() for one in text)
    )


def cut(text: str) -> str:
    """The text without the known keys; the same object where it holds none."""
    for key in _texts:
        if key in text:
            text = text.replace(key, MASK)
    return text


def change(text: str, place: str) -> str:
    """``cut`` as a function of a text and its place, for ``rollout_trace.data.redact``."""
    return cut(text)


def cut_bytes(data: bytes) -> bytes:
    """Bytes (a body, a line of JSON) without the known keys; the same object where they hold none."""
    for key in _bytes:
        if key in data:
            data = data.replace(key, MASK.encode())
    return data


def cut_pieces(data: bytes, sizes: Sequence[int]) -> tuple[bytes, tuple[int, ...]]:
    """``cut_bytes`` of bytes that came in pieces: also the sizes that the pieces have then.

    Args:
        data: the bytes.
        sizes: of the pieces; they add up to the length of the bytes. A piece may have part of a key.
    """
    ends = list(accumulate(sizes))
    for key in _bytes:
        if key in data:
            ends = _moved(ends, data, key)
            data = data.replace(key, MASK.encode())
    return data, tuple(end - start for start, end in zip([0, *ends], ends, strict=False))


def _moved(ends: Iterable[int], data: bytes, key: bytes) -> list[int]:
    """Where places of bytes are once the mask stands for the key. Those inside a key are inside the mask."""
    starts, at = [], data.find(key)
    while at != -1:
        starts.append(at)
        at = data.find(key, at + len(key))
    moved = []
    for end in ends:
        before = bisect_left(starts, end)
        into = end - starts[before - 1] if before else len(key)
        # Of the last key before the place, as much counts as the place is behind its beginning.
        moved.append(end - before * len(key) + before * len(MASK))
        if into < len(key):
            moved[-1] += len(key) - into - len(MASK) + min(into, len(MASK))
    return moved


def found_in(data: bytes) -> bool:
    """Returns whether bytes hold a known key."""
    return any(key in data for key in _bytes)


def all_keys() -> tuple[str, ...]:
    """The keys that are known, oldest first: for a process of its own that writes for this one."""
    with _lock:
        return tuple(_keys)


def any_known() -> bool:
    """Returns whether any key is known."""
    return bool(_texts)


_PIECES = tuple(
    f'"{name}":"'.encode()
    for name in ("content", "text", "arguments", "partial_json", "delta", "thinking", "reasoning", "reasoning_content")
)


def spoils(request: bytes | None, response: bytes) -> bool:
    """Returns whether an exchange cannot be kept as its bytes, decompressed, because a known key is in it.

    ``cut_bytes`` alone is not enough: token ids in the answer spell the key, and a stream may have it in pieces. Its
    decoded steps can be kept.
    """
    if not _bytes:
        return False
    if (request is not None and found_in(request)) or found_in(response):
        return True
    if b"\\u00" in response and found_in(_ESCAPED.sub(lambda match: bytes([int(match[1], 16)]), response)):
        return True
    return split_in(response)


_ESCAPED = re.compile(rb"\\u00([2-7][0-9a-fA-F])")
"""ASCII as some servers escape it in JSON: ``\\u002B``."""


def split_in(data: bytes) -> bool:
    """Returns whether the texts of a stream's events, joined, hold a known key that came in pieces.

    For bytes that are kept as they are: ``cut_bytes`` finds no key that no event has whole.
    """
    if not _bytes or data.count(b"data:") < 2:
        return False
    # Without escaped quotes, a piece ends with the first quote; `json.dumps` puts a space before its first one.
    data = data.replace(b'\\"', b"'").replace(b'": "', b'":"')
    return any(
        found_in(b"".join([piece.partition(b'"')[0] for piece in data.split(name)[1:]]))
        for name in _PIECES
        if name in data
    )


_TOKENS = re.compile(
    rb'"[A-Za-z_]*(?:token_ids?|output_ids|input_ids|logprobs|logprobsResult|tokens|context)"\s*:\s*[\[{]'
    rb'|"token_?[iI]d"\s*:\s*\d'
)
"""Where engines put ids and tokens. A count of tokens is a number."""


def has_tokens(response: bytes) -> bool:
    """Returns whether an answer of a model has token ids, or its text token by token: they spell a key."""
    return _TOKENS.search(response) is not None


def _learn_header(value: bytes, *, has_parts: bool = False) -> None:
    """``has_parts``: texts between ``;``, ``,``, spaces and ``=`` may be keys too, as the values of cookies are."""
    text = _text(value).strip()
    scheme, space, rest = text.partition(" ")
    if text.lower().startswith(_UNSENT_SCHEMES):
        return _note(value, [])
    keys = [rest.strip() if space else text]
    if space and scheme.lower() == "basic":
        from base64 import b64decode

        try:
            pair = _text(b64decode(rest, validate=True))
            keys += [pair, pair.partition(":")[2]]
        except ValueError:
            pass
    if has_parts:
        from urllib.parse import unquote

        parts = [part.strip('"') for one in re.split(r"[;,\s]+", text) for part in (one, one.partition("=")[2])]
        keys += [*parts, *map(unquote, parts)]
    _note(value, keys)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _note(value: bytes | str, candidates: Iterable[str]) -> None:
    """Stores a value that was met, with the keys in it."""
    global _texts, _bytes
    keys = [key for key in candidates if is_key(key)]
    with _lock:
        if len(_seen) >= 4 * LIMIT:
            # Values that hold no key: a header that is another one each time must not fill the memory.
            _seen.clear()
        _seen.add(value)
        new = [key for key in keys if key not in _keys]
        if not new:
            return
        _keys.update(dict.fromkeys(new))
        while len(_keys) > LIMIT:
            del _keys[next(iter(_keys))]
        forms = {form for key in _keys for form in _forms(key)}
        texts = {*_keys, *forms, *(repr(key)[1:-1] for key in _keys)}
        # Also as JSON has each of these texts: where it is in a value, it is found in the value's JSON.
        forms |= {_in_json(text) for text in texts}
        # Replaced as a whole: other threads search at the same time.
        _texts = tuple(sorted(texts, key=len, reverse=True))
        _bytes = tuple(form.encode("utf-8", "surrogatepass") for form in sorted(forms, key=len, reverse=True))


def _forms(key: str) -> set[str]:
    """The ways in which a key stands in JSON, in addresses and in the ``repr`` of a text."""
    from urllib.parse import quote

    in_json, in_repr = _in_json(key), repr(key)[1:-1]
    # A key with a quote in it is looked for as JSON has it: cut as it is, it could take a quote of the JSON's own.
    return {
        in_json,
        _in_json(key, ascii=True),
        in_json.replace("/", "\\/"),
        _in_json(in_json, ascii=True),  # In the raw arguments of a tool call, which are JSON in a string.
        _in_json(in_repr, ascii=True),
        quote(key, safe=""),
    }


def _in_json(text: str, *, ascii: bool = False) -> str:
    import json

    return json.dumps(text, ensure_ascii=ascii)[1:-1]


add_secret_headers(filter(None, os.environ.get(SECRET_HEADERS, "").lower().split(",")))
