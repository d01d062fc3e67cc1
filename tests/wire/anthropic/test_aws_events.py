"""Bedrock's framing of a stream, from frames built here by the format's own description."""

from __future__ import annotations

import base64
import json
import struct
import zlib

from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_trace.wire.sse import framed_events, is_framed
from tests.amount import examples
from tests.wire.anthropic.raw import THINKING_AND_TOOL, read

KIND = "application/vnd.amazon.eventstream"


def frame(payload: bytes, **headers: str) -> bytes:
    """One frame; header names get their colon here."""
    named = {f":{name.replace('_', '-')}": value for name, value in headers.items()}
    head = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
        for name, value in named.items()
    )
    # a timestamp, a truth and a byte buffer, which are no texts
    head += b"\x02ts\x08" + bytes(8) + b"\x02ok\x00" + b"\x02bb\x06\x00\x03abc"
    prelude = struct.pack(">II", 16 + len(head) + len(payload), len(head))
    whole = prelude + struct.pack(">I", zlib.crc32(prelude)) + head + payload
    return whole + struct.pack(">I", zlib.crc32(whole))


def chunk(data: bytes) -> bytes:
    payload = json.dumps({"bytes": base64.b64encode(data).decode(), "p": "abcdefgh"}).encode()
    return frame(payload, event_type="chunk", content_type="application/json", message_type="event")


FRAMES = [chunk(line[6:]) for line in THINKING_AND_TOOL.split(b"\n") if line.startswith(b"data: ")]
FRAMED = b"".join(FRAMES)


def test_a_framed_stream_equals_the_plain_one() -> None:
    """The same events in frames are the same step."""
    plain, framed = read(THINKING_AND_TOOL), read(FRAMED, content_type=KIND)
    for name in ("completion", "usage", "finish_reason", "status", "response_id"):
        assert getattr(framed, name) == getattr(plain, name)


def test_a_framed_stream_cut_at_any_byte() -> None:
    """Whole frames count, the rest does not; it is never an error."""
    ends = [sum(map(len, FRAMES[: n + 1])) for n in range(len(FRAMES))]
    for cut in range(1, len(FRAMED)):
        body = FRAMED[:cut]
        assert is_framed(body)
        assert len(list(framed_events(body))) == sum(1 for end in ends if end <= cut)
    for count in range(len(FRAMES) - 2):
        assert read(FRAMED[: ends[count]], content_type=KIND).status == "abandoned"


def test_exceptions() -> None:
    """A frame that is an exception is an error with its name and message; so is an error by headers alone."""
    said = b'{"message":"slow down"}'
    thrown = frame(said, message_type="exception", exception_type="throttlingException")
    step = read(FRAMES[0] + thrown, content_type=KIND)
    assert step.status == "error"
    assert step.error is not None
    assert (step.error.type, step.error.message) == ("throttlingException", "slow down")
    coded = frame(b"", message_type="error", error_code="InternalFailure", error_message="gone")
    error = read(coded, content_type=KIND).error
    assert error is not None
    assert (error.type, error.message) == ("InternalFailure", "gone")


def test_a_damaged_frame_is_an_error() -> None:
    """A checksum that does not fit ends the stream, and says where."""
    broken = bytearray(FRAMED)
    broken[len(FRAMES[0]) + 40] ^= 1
    step = read(bytes(broken), content_type=KIND)
    assert step.status == "error"
    assert step.error is not None
    assert step.error.message == f"the frame at byte {len(FRAMES[0])} of the event stream is damaged"


def test_chunks_without_bytes_and_other_events() -> None:
    """A chunk that holds none is an error; events of other kinds are passed over."""
    other = frame(b"{}", event_type="initial-response", message_type="event")
    assert read(other + FRAMED, content_type=KIND).status == "ok"
    empty = frame(b'{"p": "a"}', event_type="chunk", message_type="event")
    assert read(FRAMES[0] + empty, content_type=KIND).status == "error"


@settings(max_examples=examples(900))
@given(st.data())
def test_flipped_bytes_give_a_step(data: st.DataObject) -> None:
    """Whatever is wrong with the frames."""
    body = bytearray(FRAMED)
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    assert read(bytes(body), content_type=KIND).status in ("ok", "error", "abandoned")


@settings(max_examples=examples(900))
@given(st.binary(max_size=60), st.binary(max_size=40))
def test_any_headers_and_payload(head: bytes, payload: bytes) -> None:
    """Frames with right checksums around anything."""
    prelude = struct.pack(">II", 16 + len(head) + len(payload), len(head))
    whole = prelude + struct.pack(">I", zlib.crc32(prelude)) + head + payload
    list(framed_events(whole + struct.pack(">I", zlib.crc32(whole))))
