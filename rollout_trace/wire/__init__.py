"""What is on the wire: protocols, their decoders and messages, and the profiles of engines. No I/O, no clock, no state.

One exception: the keys that this process's clients sent are cut out of what is decoded (``rollout_trace.credentials``).

Public: ``decode`` and ``PROTOCOLS``. The modules are internal.
"""

from __future__ import annotations

from hashlib import sha1
from typing import TYPE_CHECKING, Final

from rollout_trace.wire.protocols import RECORDS

if TYPE_CHECKING:
    from rollout_trace.data.model import Step

PROTOCOLS: Final = tuple(one.name for one in RECORDS if one.decoder is not None)
"""The protocols that ``decode`` can read."""


def decode(
    protocol: str,
    request: bytes | None,
    response: bytes,
    *,
    content_type: str | None = None,
    status: int = 200,
    model: str | None = None,
) -> list[Step]:
    """Decodes one exchange into steps: one per choice, or one that holds the error.

    Args:
        protocol: one of ``PROTOCOLS``.
        request: body of the request, without content encoding; None if unknown.
        response: body of the answer, without content encoding; complete, or cut off anywhere.
        content_type: content type of the answer; None: guessed from the body.
        status: HTTP status of the answer.
        model: the model, if the request's path names it but its body does not (``google.generate_content``).

    Step ids are derived from the bytes. Invalid bytes do not raise: what is wrong is in the steps' ``error`` and
    ``token_issue``.

    Raises:
        ValueError: the protocol is unknown.
    """
    import rollout_trace.wire.steps as wire_steps

    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol {protocol!r} is not known; known: {', '.join(PROTOCOLS)}.")
    digest = sha1(request or b"", usedforsecurity=False)
    digest.update(response)
    steps, _ = wire_steps.exchange_of(
        digest.hexdigest()[:24],
        protocol,
        request,
        response,
        content_type=content_type,
        status=status,
        stores=wire_steps.Stores(),
        path_model=model,
    )
    return steps


__all__ = ["PROTOCOLS", "decode"]
