"""Content encodings: undone whole, chained, as far as a cut body goes; anything else is a ValueError that says why."""

from __future__ import annotations

import gzip
import random
import sys
import tracemalloc
import zlib
from collections.abc import Callable

import brotli
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_trace.wire.body import decompress, unpack
from tests.wire.raw import exchanges

TEXT = exchanges()["chat_ids_stream"].response


def bare_deflate(data: bytes) -> bytes:
    """The deflate stream without the zlib wrapper, as some servers send it."""
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def streamed_zstd(data: bytes) -> bytes:
    """A frame that does not say how long its content is, as a server that streams makes it."""
    packer = zstandard.ZstdCompressor().compressobj()
    return packer.compress(data) + packer.flush()


ENCODERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", lambda data: gzip.compress(data, mtime=0)),
    "x-gzip": ("x-gzip", lambda data: gzip.compress(data, mtime=0)),
    "deflate": ("deflate", zlib.compress),
    "bare deflate": ("deflate", bare_deflate),
    "br": ("br", lambda data: bytes(brotli.compress(data, quality=4))),
    "zstd": ("zstd", lambda data: zstandard.ZstdCompressor().compress(data)),
    "streamed zstd": ("zstd", streamed_zstd),
}


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize("text", [b"", b"x", TEXT, bytes(100_000)], ids=["empty", "byte", "stream", "zeros"])
def test_every_encoding_is_undone(kind: str, text: bytes) -> None:
    """The bytes are what they were before the encoding, for every encoding the SDKs accept."""
    name, encode = ENCODERS[kind]
    assert decompress(encode(text), name) == text


@pytest.mark.parametrize("encoding", [None, "", "identity", " Identity ", "identity, identity", ","])
def test_no_encoding_changes_nothing(encoding: str | None) -> None:
    """Without a content-encoding the body is the body."""
    assert decompress(TEXT, encoding) == TEXT


@pytest.mark.parametrize("header", ["GZIP", " gzip ", "gzip,", "identity, gzip", "gzip , identity"])
def test_the_header_is_read_as_http_says(header: str) -> None:
    """Names in any case, with blanks, beside `identity`."""
    assert decompress(gzip.compress(TEXT), header) == TEXT


@pytest.mark.parametrize(("first", "second"), [("gzip", "br"), ("br", "gzip"), ("zstd", "deflate"), ("gzip", "gzip")])
def test_chained_encodings_are_undone_from_the_last(first: str, second: str) -> None:
    """`content-encoding: a, b` was encoded with a, then with b."""
    body = ENCODERS[second][1](ENCODERS[first][1](TEXT))
    assert decompress(body, f"{first}, {second}") == TEXT


@pytest.mark.parametrize("kind", ENCODERS)
@settings(max_examples=25)
@given(data=st.data())
def test_of_a_cut_body_comes_what_can_be_had(kind: str, data: st.DataObject) -> None:
    """Wherever a body was cut, what comes out is a prefix of the whole."""
    name, encode = ENCODERS[kind]
    whole = encode(TEXT)
    cut = data.draw(st.integers(0, len(whole) - 1))
    found = decompress(whole[:cut], name)
    assert TEXT.startswith(found)


@pytest.mark.parametrize("kind", ["gzip", "deflate", "bare deflate", "br"])
def test_most_of_a_cut_body_comes_out(kind: str) -> None:
    """The last bytes missing costs the end of the text, not the whole of it."""
    name, encode = ENCODERS[kind]
    assert len(decompress(encode(TEXT)[:-20], name)) > len(TEXT) // 2


@pytest.mark.parametrize("kind", ["gzip", "deflate", "bare deflate", "br", "zstd"])
def test_a_stream_flushed_at_each_event_gives_every_event_before_the_cut(kind: str) -> None:
    """A server that streams flushes after each event: all events that arrived whole are there."""
    name = ENCODERS[kind][0]
    packers: dict[str, tuple[Callable[[bytes], bytes], Callable[[], bytes]]] = {}
    for wrapped, bits in (("gzip", 31), ("deflate", 15), ("bare deflate", -15)):
        packer = zlib.compressobj(wbits=bits)
        packers[wrapped] = (packer.compress, lambda packer=packer: packer.flush(zlib.Z_SYNC_FLUSH))  # type: ignore[misc]
    br = brotli.Compressor(quality=4)
    packers["br"] = (br.process, br.flush)
    zstd = zstandard.ZstdCompressor().compressobj()
    packers["zstd"] = (zstd.compress, lambda: zstd.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
    compress, flush = packers[kind]
    sent, arrived = b"", b""
    for event in TEXT.split(b"\n\n")[:5]:
        sent += event + b"\n\n"
        arrived += compress(event + b"\n\n") + flush()
    assert decompress(arrived, name) == sent


@pytest.mark.parametrize("encoding", ["compress", "aes128gcm", "utf-8", "gzip;q=1"])
def test_an_unknown_encoding_is_named_with_the_known_ones(encoding: str) -> None:
    """The error says what was found and what there is."""
    with pytest.raises(ValueError) as caught:
        decompress(TEXT, encoding)
    assert str(caught.value) == (f"content-encoding {encoding!r} is not known; known: br, deflate, gzip, x-gzip, zstd.")


@pytest.mark.parametrize("name", ["gzip", "deflate", "br", "zstd"])
def test_bytes_that_are_not_in_their_encoding_are_an_error(name: str) -> None:
    """The error names the encoding and what its decoder said."""
    with pytest.raises(ValueError, match=rf"^the body is not in its content-encoding '{name}': .+\.$"):
        decompress(b'{"id": "chatcmpl-1", "choices": []}', name)


def test_only_the_first_of_several_faults_is_told() -> None:
    """In a chain, the encoding that could not be undone."""
    with pytest.raises(ValueError, match="content-encoding 'br'"):
        decompress(gzip.compress(b"no brotli at all"), "br, gzip")


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without brotli installed a `br` body cannot be had; the error says why."""
    monkeypatch.setitem(sys.modules, "brotli", None)
    monkeypatch.setitem(sys.modules, "brotlicffi", None)
    with pytest.raises(ValueError, match=r"content-encoding 'br' needs a library that is not installed: .*brotli"):
        decompress(ENCODERS["br"][1](TEXT), "br")


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_a_body_of_several_members_is_all_of_them(kind: str) -> None:
    """RFC 1952 and RFC 8878 let a body be several members one after another."""
    name, encode = ENCODERS[kind]
    assert decompress(encode(b"one ") + encode(b"two"), name) == b"one two"


BOMBS = [name for name in ENCODERS if name != "x-gzip"]


@pytest.mark.parametrize("kind", BOMBS)
def test_no_more_is_unpacked_than_is_wanted(kind: str) -> None:
    """A few kB that hold 64 MB: only the first come out, and no more memory is taken than they need."""
    name, encode = ENCODERS[kind]
    body, limit = encode(bytes(64 * 1024 * 1024)), 1024 * 1024
    unpack(encode(b"x"), name, limit)  # its library is loaded
    tracemalloc.start()
    try:
        found, has_more = unpack(body, name, limit)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (found, has_more) == (bytes(limit), True)
    assert peak < 4 * limit


@pytest.mark.parametrize("outer", ["gzip", "deflate", "br", "zstd"])
@pytest.mark.parametrize("kind", [None, *BOMBS])
def test_the_limit_is_exact(kind: str | None, outer: str) -> None:
    """As many bytes as wanted, and whether there are more; also in two encodings, and without any."""
    name, encode = ENCODERS[kind] if kind is not None else ("identity", bytes)
    body = ENCODERS[outer][1](encode(TEXT))
    for limit in (0, 1, len(TEXT) - 1, len(TEXT), len(TEXT) + 1):
        assert unpack(body, f"{name}, {outer}", limit) == (TEXT[:limit], limit < len(TEXT))
        assert unpack(encode(TEXT), name, limit) == (TEXT[:limit], limit < len(TEXT))


def test_a_bomb_inside_a_bomb_is_bounded() -> None:
    """What unpacks to much, and holds nothing: the limit is for each encoding."""
    inner = gzip.compress(b"") * 400_000
    assert unpack(gzip.compress(inner), "gzip, gzip", 100_000) == (b"", True)


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_members_that_hold_nothing_cost_little(kind: str) -> None:
    """Many empty members, one after another, and then a text."""
    name, encode = ENCODERS[kind]
    assert unpack(encode(b"") * 100_000 + encode(TEXT), name, len(TEXT)) == (TEXT, False)


@pytest.mark.parametrize("kind", ENCODERS)
def test_a_long_body_is_undone_whole(kind: str) -> None:
    """Bytes that do not compress, of many times what is unpacked at once."""
    name, encode = ENCODERS[kind]
    text = random.Random(1).randbytes(3_000_000)
    assert decompress(encode(text), name) == text
