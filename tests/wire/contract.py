"""What becomes of each field of every recorded answer: which fields of a step change when it is taken away.

`python -m tests.wire.contract` writes it into `tests/data/contracts`, one file for each release of an engine. What
changes there is what somebody has to look at: a field that is new in a recording, or one that goes elsewhere now.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from rollout_trace.data.exchange import Exchange
from rollout_trace.data.model import STEP_FIELDS, Step
from rollout_trace.data.tokens import same_array
from rollout_trace.testing.recordings import load_exchanges
from rollout_trace.wire import decode
from rollout_trace.wire.protocols import RECORDS

DATA = Path(__file__).parents[1] / "data"
CONTRACTS = DATA / "contracts"
RELEASES = {
    "vllm-0.32": ("vllm", "vllm_completions", "vllm_extras", "vllm_generate", "vllm_responses", "messages_vllm"),
    "vllm-0.33": ("vllm_033",),
    "llama-server": ("llama_server", "llama_server_completions", "llama_server_responses", "messages_llama_server"),
    "llama-server-b11549": ("llama_server_b11549",),
    "llama-cpp-python-0.3.36": ("llama_cpp_python", "llama_cpp_python_completions", "messages_llama_cpp_python"),
    "transformers-serve-5.23": (
        *("transformers_serve", "transformers_serve_completions", "transformers_serve_responses"),
        "messages_transformers_serve",
    ),
}
"""The recordings of each release: files `wire_NAME.jsonl.xz`."""
NULL, NOWHERE = "null", "-"
"""Only nulls and empty values were seen; nothing of a step changes."""

_OPEN = frozenset({"arguments", "input", "parameters", "prompt_logprobs", "schema", "top_logprobs"})
"""Objects with these names have any names inside: of a tool's parameters, of tokens."""
_DATA = re.compile(rb"^data: ?(\{.*)$", re.MULTILINE)
_TYPED = ("anthropic.messages", "openai.responses")
"""Protocols whose chunks are of a type."""
_TRIED = 2
"""Answers in which a field is taken away: the smallest that have it."""

Names = tuple[str, ...]
Contract = dict[str, dict[str, str]]
"""By protocol and path of a field: the fields of a step that it goes to."""


def contract_of(release: str) -> Contract:
    """What becomes of the fields of all recorded answers of a release."""
    found: Contract = {}
    for (protocol, is_refused), exchanges in _by_protocol(release).items():
        found[f"{protocol} error" if is_refused else protocol] = {
            ".".join(path): ", ".join(_goes_to(protocol, path, having)) or NOWHERE if having else NULL
            for path, having in sorted(fields_of(protocol, exchanges).items())
        }
    return found


def written(release: str) -> Contract:
    """The contract file of a release."""
    value: Contract = json.loads((CONTRACTS / f"{release}.json").read_bytes())
    return value


def _by_protocol(release: str) -> dict[tuple[str, bool], list[Exchange]]:
    """The answers of each protocol, the smallest first; refusals by themselves."""
    found: dict[tuple[str, bool], list[Exchange]] = {}
    for name in RELEASES[release]:
        for one in load_exchanges(DATA / f"wire_{name}.jsonl.xz"):
            protocol = next((record.name for record in RECORDS if one.path.endswith(record.paths or "?")), None)
            if protocol is not None and one.response:
                found.setdefault((protocol, (one.status or 0) >= 400), []).append(one)
    return {key: sorted(found[key], key=lambda one: len(one.response)) for key in sorted(found)}


def fields_of(protocol: str, exchanges: Sequence[Exchange]) -> dict[Names, list[Exchange]]:
    """Each field of the answers, and the first of those in which it has a value."""
    found: dict[Names, list[Exchange]] = {}
    for one in exchanges:
        for path, has_value in dict(sorted(_leaves_of(protocol, one))).items():
            having = found.setdefault(path, [])
            if has_value and len(having) < _TRIED:
                having.append(one)
    return found


def _leaves_of(protocol: str, exchange: Exchange) -> list[tuple[Names, bool]]:
    found: list[tuple[Names, bool]] = []
    _changed(exchange, lambda body: found.extend(_leaves(body, _prefix(protocol, body))))
    return found


def _leaves(value: Any, path: Names) -> Iterator[tuple[Names, bool]]:
    items = value if isinstance(value, list) else [value]
    objects = [item for item in items if isinstance(item, dict) and item]
    if path and (path[-1] in _OPEN or not objects):
        yield path, value not in (None, [], {}, "")
        return
    for item in objects:
        for name, inner in item.items():
            yield from _leaves(inner, (*path, name))


def _prefix(protocol: str, body: Any) -> Names:
    kind = body.get("type") if isinstance(body, dict) and protocol in _TYPED else None
    return (f"<{kind}>",) if isinstance(kind, str) else ()


def _changed(exchange: Exchange, change: Callable[[Any], Any]) -> bytes:
    """The answer with each of its JSON objects changed."""
    if "event-stream" in exchange.content_type:
        return _DATA.sub(lambda found: b"data: " + json.dumps(change(json.loads(found[1]))).encode(), exchange.response)
    try:
        body = json.loads(exchange.response)
    except ValueError:
        return exchange.response
    return json.dumps(change(body)).encode()


def _goes_to(protocol: str, path: Names, exchanges: Sequence[Exchange]) -> list[str]:
    def less(body: Any) -> Any:
        prefix = _prefix(protocol, body)
        return _without(body, path[len(prefix) :]) if path[: len(prefix)] == prefix else body

    found: set[str] = set()
    for one in exchanges:
        before, after = _unchanged(protocol, one), _steps(protocol, one, _changed(one, less))
        found |= {"steps"} if len(before) != len(after) else set()
        found |= {name for pair in zip(before, after, strict=False) for name in _differing(*pair)}
    return sorted(found)


@lru_cache
def _unchanged(protocol: str, exchange: Exchange) -> list[Step]:
    return _steps(protocol, exchange, _changed(exchange, lambda body: body))


def _without(value: Any, path: Names) -> Any:
    if isinstance(value, list):
        return [_without(item, path) for item in value]
    if not isinstance(value, dict):
        return value
    if len(path) == 1:
        return {name: item for name, item in value.items() if name != path[0]}
    return {name: _without(item, path[1:]) if name == path[0] else item for name, item in value.items()}


def _steps(protocol: str, exchange: Exchange, body: bytes) -> list[Step]:
    kind, status = exchange.content_type, exchange.status or 0
    return decode(protocol, exchange.request, body, content_type=kind, status=status)


def _differing(one: Step, other: Step) -> set[str]:
    names = set(STEP_FIELDS) - {"id", "call_id", "token_issue", "extra_issues"}
    return {name for name in names if not same_array(getattr(one, name), getattr(other, name))}


def recordings() -> frozenset[str]:
    """The names of all files of recordings."""
    return frozenset(file.name.removeprefix("wire_").removesuffix(".jsonl.xz") for file in DATA.glob("wire_*.jsonl.xz"))


def main() -> None:
    """Writes the contract files anew."""
    for release in RELEASES:
        text = json.dumps(contract_of(release), indent=1, ensure_ascii=False)
        (CONTRACTS / f"{release}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
