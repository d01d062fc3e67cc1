"""msgspec looks at a type when that is first read, and takes the process down where two threads are first."""

from __future__ import annotations

import ast
import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

import rollout_trace

PACKAGE = Path(rollout_trace.__file__).parent
LOOK = """
import sys
from importlib import import_module
import msgspec

late = []

def profile(frame, event, argument):
    if frame.f_code.co_name == "get_class_annotations" and event == "call":
        late.append(name)

for name in sys.argv[1:]:
    module, _, kind = name.rpartition(".")
    kind = getattr(import_module(module), kind)
    kind = getattr(kind, "_part", kind)
    sys.setprofile(profile)
    msgspec.json.Decoder(kind)
    sys.setprofile(None)
print(*late)
"""


def types_read() -> Iterator[str]:
    """The types of our own that are named where msgspec reads: `convert(value, Kind)`, `decode(data, type=Kind)`."""
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "msgspec" not in text:
            continue
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                read = [one.value for one in node.keywords if one.arg == "type" and node.func.attr == "decode"]
                read += node.args[1:2] if node.func.attr == "convert" else []
                for one in read:
                    if isinstance(one, ast.Name) and _is_own(getattr(import_module(module), one.id, None)):
                        yield f"{module}.{one.id}"


def _is_own(kind: Any) -> bool:
    return isinstance(kind, type) and (issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind))


def test_types_are_looked_at_when_their_module_is_imported() -> None:
    names = sorted(set(types_read()))
    # These make parts of a line, with all that is in them.
    names += [f"rollout_trace.file.fields.{one}" for one in ("_step", "_tool_run", "_trajectory")]
    done = subprocess.run([sys.executable, "-c", LOOK, *names], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
