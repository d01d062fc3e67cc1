"""Code of trainers that are on no index, from the checkouts in the folder that ``ROLLOUT_TRACE_CHECKOUTS`` names."""

from __future__ import annotations

import ast
import importlib
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from tests.consumers.modules import skip_init

CHECKOUTS = os.environ.get("ROLLOUT_TRACE_CHECKOUTS")


def checkout(name: str) -> Path:
    path = Path(CHECKOUTS or "", name)
    if CHECKOUTS is None or not path.is_dir():
        pytest.skip(f"no checkout of {name}: set ROLLOUT_TRACE_CHECKOUTS to a folder that has one")
    return path


def stub(name: str, **attributes: Any) -> None:
    module = types.ModuleType(name)
    for attribute, value in attributes.items():
        setattr(module, attribute, value)
    sys.modules[name] = module


def sample_of(trainer: str) -> Any:
    """The class ``Sample`` of slime or Miles."""
    skip_init(trainer, f"{trainer}.utils", root=checkout(trainer))
    stub(f"{trainer}.utils.misc", decode_int32_meta_array=None)  # Reads answers of SGLang.
    return importlib.import_module(f"{trainer}.utils.types").Sample


def functions_of(path: Path, *names: str, **given: Any) -> dict[str, Any]:
    """Functions of a module that cannot be imported without its trainer's servers, as they stand there.

    Args:
        names: of the functions, also of methods. Their decorators are left out.
        given: what they find as globals.
    """
    tree = ast.parse(path.read_text())
    chosen: list[Any] = [node for node in ast.walk(tree) if getattr(node, "name", None) in names]
    for node in chosen:
        node.decorator_list = []
    future = ast.parse("from __future__ import annotations").body
    made = dict(given)
    exec(compile(ast.Module([*future, *chosen], []), str(path), "exec"), made)
    return made
