"""Bytes of a request or an answer as a line has them: as text where they are UTF-8, else in base64."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollout_trace.file.records import BodyRecord


class BadBody(ValueError):
    """A record holds no bytes: what was expected, and what was found.

    Args:
        field: of the record that is wrong: ``text`` or ``base64``.
        problem: the message.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(problem)
        self.field = field


def body_record(data: bytes) -> dict[str, str]:
    """The record of some bytes."""
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def body_bytes(record: BodyRecord) -> bytes:
    """The bytes of a record.

    Raises:
        BadBody: its text has half a surrogate pair, or its base64 is none.
    """
    if record.base64 is None:
        try:
            return (record.text or "").encode()
        except UnicodeEncodeError as error:
            raise BadBody("text", f"expected the text of a body, got half a surrogate pair: {error}") from error
    try:
        return base64.b64decode(record.base64, validate=True)
    except ValueError as error:  # Not binascii.Error: text that is not ASCII raises a plain ValueError.
        raise BadBody("base64", f"expected base64, got something else: {error}") from error
