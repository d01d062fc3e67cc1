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
    """The steps of one exchange: one per choice, or one that holds the error.

    Args:
        protocol: one of ``PROTOCOLS``.
        request: body of the request, without content encoding; None where it is not known.
        response: body of the answer, without content encoding; whole, or cut anywhere.
        content_type: of the answer; guessed from the body where it is None.
        status: HTTP status of the answer.
        model: the model, where the path of the request names it and its body does not (``google.generate_content``).

    Step ids are derived from the bytes. Never raises because of the bytes: what is wrong with them is in ``error`` and
    ``token_issue`` of the steps.

    Raises:
        ValueError: the protocol is not known.
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
