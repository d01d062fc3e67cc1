"""When this process was started, and by which command, without the secrets in it."""

from __future__ import annotations

import os
import re
import sys
import time
from datetime import datetime, timezone

from rollout_trace.credentials import MASK

LONGEST = 1000
"""Most characters of one argument that are kept: ``python -c`` has a whole program in it."""
_NAMES = frozenset(
    {"key", "apikey", "token", "accesstoken", "authtoken", "password", "passwd", "passphrase", "pwd", "secret",
     "secrets", "credential", "credentials", "auth", "authorization", "bearer", "cookie"}
)  # fmt: skip
"""Words in the name of an option whose value is a secret: ``--openai-api-key``, ``hf_token=``."""
_WORD = rf"(?:[\w.+-]*[_.+-])?(?:{'|'.join(sorted(_NAMES, key=len, reverse=True))})"
_PATTERNS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        # scheme://user:password@host
        (r"(?<=://)[^/\s@\"']+(?=@)", MASK),
        # Authorization: Bearer ..., x-api-key: ...
        (r"(?i)\b(authorization[\"']?\s*[:=]\s*[\"']?(?:(?:bearer|basic|token)\s+)?)[^\s\"',;}]+", rf"\1{MASK}"),
        (r"(?i)\b((?:bearer|basic)\s+)[\w.~+/=-]{8,}", rf"\1{MASK}"),
        # api_key=..., "token": "...", also in a program or a JSON text
        (rf"(?i)(?<!\w)(-*{_WORD}[\"']?\s*(?:=|:)\s*)(?!(?:bearer|basic|token)\s)"
         r"(?:\"[^\"]*\"|'[^']*'|[^\s\"',;&}]+)", rf"\1{MASK}"),
        # What is recognised by itself.
        (r"\b(?:sk|pk|rk|gsk|hf|nvapi|xai|glpat|ghp|gho|ghs|ghu|github_pat|r8|pplx|fw|tvly)[-_][\w-]{12,}", MASK),
        (r"\bxox[abeoprs]-[\w-]{10,}", MASK),
        (r"\bA(?:KIA|SIA)[A-Z0-9]{16}\b", MASK),
        (r"\bAIza[\w-]{30,}", MASK),
        (r"\beyJ[\w-]{5,}\.[\w-]{5,}\.[\w-]*", MASK),
        (r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", MASK),
    )
]  # fmt: skip
_OPTION = re.compile(rf"(?i)--?{_WORD}")


def command_line(arguments: list[str] | None = None) -> list[str]:
    """The arguments that this process was started with, the interpreter's own included, without secrets."""
    given = list(sys.orig_argv) if arguments is None else arguments
    kept: list[str] = []
    is_secret = False
    for argument in given:
        if is_secret and not argument.startswith("--"):
            kept.append(MASK)
            is_secret = False
            continue
        is_secret = _OPTION.fullmatch(argument) is not None
        kept.append(_shortened(without_secrets(argument)))
    return kept


def without_secrets(text: str) -> str:
    """A text, at most 2,000 characters of it, without what is recognised as a key, a password or a token."""
    # Two patterns take time with the square of a text without spaces.
    text = _shortened(text, 2 * LONGEST)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def _shortened(text: str, length: int = LONGEST) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def start_of_process() -> str | None:
    """When this process was started, as an ISO date in UTC; None where the system does not have it at hand."""
    try:
        with open("/proc/self/stat", "rb") as file:
            # After the name of the program, which is in brackets and may hold anything: field 22, in clock ticks.
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        return datetime.fromtimestamp(time.time() - age, timezone.utc).isoformat(timespec="milliseconds")
    except (OSError, ValueError, IndexError, AttributeError):
        return None
