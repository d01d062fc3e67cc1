"""What an endpoint sends beside ids and logprobs, by form of call: the test calls for it, and their results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from rollout_trace._field_docs import document_fields
from rollout_trace.wire.engine import SGLANG_GENERATE, VLLM_GENERATE, Engine, path_of
from rollout_trace.wire.profiles import EngineProfile

if TYPE_CHECKING:
    from rollout_trace.data.model import Step

_COLUMNS: Final = {
    "prompt_logprobs": "prompt logprobs",
    "top_tokens": "top tokens",
    "sampling_mask": "mask",
    "routed_experts": "experts",
    "policy_spans": "versions",
}
"""The fields of ``Step`` that are looked for, and the names of their columns."""

SAMPLED: Final[dict[str, Any]] = {"temperature": 1, "seed": 7}
"""A mask is what is left to be sampled from: engines fail to give one, or give a trivial one, without a draw."""
TOP_K: Final = 20

_OWN: Final = {"vllm": VLLM_GENERATE, "sglang": SGLANG_GENERATE}


class OwnEndpoint(NamedTuple):
    """An engine's endpoint beside the OpenAI API."""

    protocol: str
    url: str
    body: dict[str, Any]


def everything(engine: EngineProfile) -> Engine | None:
    """All extras, of an engine that has some."""
    if engine.name == "openai":
        return None
    return Engine(
        engine.name,  # type: ignore[arg-type]
        routed_experts=True,
        prompt_logprobs=1,
        top_logprobs=2,
        sampling_mask=True,
    )


def own_endpoint(engine: str | None, base_url: str, model: str, prompt: Sequence[int] | None) -> OwnEndpoint | None:
    """The engine's own endpoint, and a request to it; None where it has none, or the ids of a prompt are not known."""
    if prompt is None or engine not in _OWN:
        return None
    protocol = _OWN[engine]
    path = path_of(protocol)
    parts = urlsplit(base_url)
    url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}{path}"
    if engine == "sglang":
        sampling = {"max_new_tokens": 8, "temperature": 1, "top_k": TOP_K}
        return OwnEndpoint(protocol, url, {"input_ids": list(prompt), "sampling_params": sampling})
    sampling = {"max_tokens": 8, **SAMPLED, "top_k": TOP_K}
    return OwnEndpoint(protocol, url, {"model": model, "token_ids": list(prompt), "sampling_params": sampling})


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeExtra:
    """Whether answers of one form have one extra."""

    extra: str
    """The field of ``Step``: ``routed_experts``, ..."""
    protocol: str
    streamed: bool
    given: bool | None
    """None: not known, the call was refused or failed."""
    problem: str | None
    """Why it is not there, and what to do; None where it is, or no reason is known."""
    request: Mapping[str, Any] | None
    """Body of the test call as it was sent; None if it was not."""

    @property
    def form(self) -> str:
        """Name of the form: ``chat``, ``chat streamed``, ..."""
        return self.protocol.rpartition(".")[2] + (" streamed" if self.streamed else "")

    @property
    def is_of_engine(self) -> bool:
        """Whether it is an answer of the engine's own endpoint."""
        return not self.protocol.startswith("openai.")


def found(protocol: str, *, streamed: bool, steps: Sequence[Step], problem: str | None) -> list[ProbeExtra]:
    """The result of one call, for each extra. ``problem``: why it failed; None where it was answered."""
    step = steps[0] if steps else None
    request = _request(step)
    issues = {issue.field: issue.message for issue in step.extra_issues} if step is not None else {}
    return [
        ProbeExtra(
            extra=extra,
            protocol=protocol,
            streamed=streamed,
            given=None if problem is not None or step is None else _has(step, extra),
            problem=issues.get(extra) or problem,
            request=request,
        )
        for extra in _COLUMNS
    ]


def lines(extras: Sequence[ProbeExtra]) -> Iterator[str]:
    """A table of forms and extras, the reasons for what is missing, and the requests that were made."""
    forms: dict[str, list[ProbeExtra]] = {}
    for one in extras:
        forms.setdefault(one.form, []).append(one)
    rows = [("extras", *_COLUMNS.values())]
    rows += [(form, *(_cell(one.given) for one in of_form)) for form, of_form in forms.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    reasons: dict[tuple[str, str], list[str]] = {}
    for of_form in forms.values():
        for column, problem in _reasons(of_form):
            reasons.setdefault((column, problem), []).append(of_form[0].form)
    for (column, problem), of_forms in reasons.items():
        yield f"  - {', '.join(filter(None, [column, *of_forms]))}: {problem}"


def _reasons(of_form: Sequence[ProbeExtra]) -> Iterator[tuple[str, str]]:
    """The column and the reason of each extra that is missing. A call that failed has one, of no column."""
    if all(one.given is None for one in of_form):
        yield "", str(of_form[0].problem)
        return
    for one in of_form:
        if not one.given and one.problem is not None:
            yield _COLUMNS[one.extra], one.problem


def _has(step: Step, extra: str) -> bool:
    return getattr(step, extra) is not None or (extra == "policy_spans" and step.policy_version is not None)


def _request(step: Step | None) -> Mapping[str, Any] | None:
    try:
        value = json.loads((step.request_bytes if step is not None else None) or b"null")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _cell(given: bool | None) -> str:
    return "-" if given is None else "yes" if given else "no"


__all__ = ["SAMPLED", "TOP_K", "OwnEndpoint", "ProbeExtra", "everything", "found", "lines", "own_endpoint"]
