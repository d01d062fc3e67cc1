"""Structs as JSON. Half surrogate pairs, which models do produce, are written as escapes."""

from __future__ import annotations

import json
from typing import Any

import msgspec


def json_text(value: Any) -> str:
    """A Struct, or what is made of them, as one line of JSON.

    Control characters, and marks of writing direction, are escaped, so that the line can be printed.
    """
    return json.dumps(msgspec.to_builtins(value))
