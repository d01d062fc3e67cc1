"""The heads of requests, read in less time than ``http.server`` takes, whose parser is one of mails."""

from __future__ import annotations

import io
import re
from http.client import HTTPMessage
from http.server import BaseHTTPRequestHandler

_LONGEST_LINE, _MOST_LINES = 1 << 16, 100
"""Of the head of a request, in bytes; the base class refuses more."""
_FIELD = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n]*)\r?\n")


class HeadReader(BaseHTTPRequestHandler):
    """Reads heads as its base class does, which is left what is unusual in one."""

    raw_requestline: bytes
    """The first line; set by the base class."""

    def parse_request(self) -> bool:
        """Reads the head. What it is, and whether it is answered, is as the base class has it."""
        words = str(self.raw_requestline, "iso-8859-1").split()
        if words[2:] != ["HTTP/1.1"] or words[1].startswith("//"):
            return super().parse_request()
        lines: list[bytes] = []
        while len(lines) <= _MOST_LINES and (not lines or len(lines[-1].rstrip(b"\r\n")) in range(1, _LONGEST_LINE)):
            lines.append(self.rfile.readline(_LONGEST_LINE + 1))
        found = [_FIELD.fullmatch(line.decode("iso-8859-1")) for line in lines[:-1]]
        fields = [(one[1], one[2]) for one in found if one is not None]
        if lines[-1] != b"\r\n" or len(fields) < len(found) or any(map(_is_of_connection, fields)):
            rest, self.rfile = self.rfile, io.BytesIO(b"".join(lines))
            try:
                return super().parse_request()
            finally:
                self.rfile = rest
        self.requestline, (self.command, self.path, self.request_version) = " ".join(words), words
        self.close_connection, self.headers = False, HTTPMessage()
        for name, value in fields:
            self.headers[name] = value
        return True


def _is_of_connection(field: tuple[str, str]) -> bool:
    name, value = field[0].lower(), field[1].lower()
    return name == "expect" or (name == "connection" and value != "keep-alive")
