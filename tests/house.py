"""The rooms of ``rollout_trace``, the imports between them (only downward, in no circle) and their budget of lines.

    python -m tests.house

prints what each room imports and how large it is; ``make check`` runs it. Counted are all imports, also those inside
functions and those for type checkers alone.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = "rollout_trace"

ROOMS = ("ground", "data", "wire", "file", "record", "clients", "process", "train", "integration", "collection",
         "importing", "export", "trainers", "view", "testing", "cli")  # fmt: skip
"""From the bottom up; a room imports only those before it. ``ground`` are the modules beside the folders."""

FACES = frozenset({"__init__", "__main__", "engines", "frames", "grouping", "installed"})
"""Modules of the package's own folder that offer what is in the rooms. No room imports them."""

DOORS = frozenset(
    ("data.trajectory", module)
    for module in ("train.checks", "train.retokenize", "train.selection", "train.sequence", "train.sequences")
) | {("collection.job", "collection.serving")}
"""Imports that may lead upward: ``Trajectory.sequences()``, ``.check()`` and ``.retokenize()``, and their types; and
``Job.run()``, which the worker makes. What ``.show()``, ``_repr_html_()`` and ``.to_json()`` call is registered in
``rollout_trace/__init__.py``."""

BUDGET: dict[str, tuple[int, int]] = {
    "ground": (1804, 18),
    "data": (4399, 17),
    "wire": (11292, 45),
    "file": (10611, 35),
    "record": (8777, 29),
    "clients": (9010, 35),
    "process": (3005, 17),
    "train": (3839, 16),
    "integration": (741, 6),
    "collection": (8144, 38),
    "importing": (6711, 31),
    "export": (7238, 36),
    "trainers": (1827, 13),
    "view": (7884, 40),
    "testing": (9566, 47),
    "cli": (3852, 26),
}
"""The most lines and files of each room. A change that needs more raises it here, where its reviewer reads it."""

PUBLIC_NAMES = 67
"""The most names in ``rollout_trace.__all__``."""

PATH_FILES, PATH_CALLS = 66, 900
"""The most files and Python calls from a client's ``request`` to a row: ``tests/test_path_of_a_call.py``."""

Graph = Mapping[str, frozenset[str]]
"""The modules that a module imports, by name inside the package: ``record.call``."""


def graph_of(package: Path) -> dict[str, frozenset[str]]:
    """The imports of each module of a package among its own modules."""
    modules = {".".join(path.relative_to(package).with_suffix("").parts): path for path in package.rglob("*.py")}
    return {name: frozenset(_imported(name, package.name, modules)) - {name} for name in modules}


def _imported(module: str, package: str, modules: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(modules[module].read_text())):
        for name in _names(node, f"{package}.{module}"):
            inside = name.partition(f"{package}.")[2] if name.startswith(f"{package}.") else ""
            # `from a.b import c` names the module a.b.c, or something in the module a.b, or in the package a.b.
            parts = inside.split(".")
            ways = [".".join(parts[:end]) + tail for end in (len(parts), len(parts) - 1) for tail in ("", ".__init__")]
            yield from [way for way in ways if inside and way in modules][:1]


def _names(node: ast.AST, module: str = "") -> list[str]:
    """The names that a node of a module imports, in full."""
    if isinstance(node, ast.ImportFrom):
        # One dot is the folder that the module is in, each more the one around it.
        above = module.split(".")[: -node.level] if node.level else []
        return [".".join([*above, *filter(None, [node.module]), alias.name]) for alias in node.names]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


def room_of(module: str) -> str:
    """The room that a module is in."""
    folder, dot, _ = module.partition(".")
    return folder if dot else "ground"


def upward(graph: Graph) -> list[str]:
    """The imports that lead to a room above, to a face, or to another folder's module with an underscore."""
    found = []
    for module, imported in sorted(graph.items()):
        for other in sorted(imported):
            if module in FACES or (module, other) in DOORS:
                continue
            here, there = ROOMS.index(room_of(module)), ROOMS.index(room_of(other))
            own = room_of(other) in ("ground", room_of(module))
            if there > here or other in FACES or (_is_private(other) and not own):
                found.append(f"{module} -> {other}")
    return found


def _is_private(module: str) -> bool:
    name = module.rpartition(".")[2]
    return name.startswith("_") and name != "__init__"


def circles(graph: Graph) -> list[str]:
    """The modules that import themselves through others, each set of them as one line."""
    reached = {module: _reach(module, graph) for module in graph}
    sets = {frozenset(m for m in reached[module] if module in reached[m]) for module in graph}
    return sorted(" <-> ".join(sorted(one)) for one in sets if one)


def _reach(module: str, graph: Graph) -> set[str]:
    seen: set[str] = set()
    waiting = [other for other in graph[module] if (module, other) not in DOORS]
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen.add(one)
            waiting += [other for other in graph[one] if (one, other) not in DOORS]
    return seen


def foreign(source: Path) -> list[str]:
    """What an integration imports of the package beside ``rollout_trace.integration``."""
    names = {name for path in source.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))
             for name in _names(node)}  # fmt: skip
    ours = sorted(name for name in names if name == PACKAGE or name.startswith(f"{PACKAGE}."))
    return [f"{source.name} -> {name}" for name in ours if not name.startswith(f"{PACKAGE}.integration.")]


def rooms_below(graph: Graph) -> dict[str, list[str]]:
    """The rooms that each room imports, both from the top down."""
    found = {}
    for room in reversed(ROOMS):
        modules = [module for module in graph if room_of(module) == room and module not in FACES]
        below = {room_of(other) for module in modules for other in graph[module] if (module, other) not in DOORS}
        found[room] = [one for one in reversed(ROOMS) if one in below - {room}]
    return found


def sizes(package: Path) -> dict[str, tuple[int, int]]:
    """The lines and files of each room of a package."""
    found = dict.fromkeys(ROOMS, (0, 0))
    for path in package.rglob("*.py"):
        room = room_of(".".join(path.relative_to(package).with_suffix("").parts))
        lines, files = found[room]
        found[room] = (lines + len(path.read_text().splitlines()), files + 1)
    return found


def over_budget(package: Path) -> list[str]:
    """The rooms with more lines or files than their budget, and what there is of each."""
    found = sizes(package)
    return [f"{room}: {found[room]}, budget {BUDGET[room]}" for room in ROOMS
            if any(have > most for have, most in zip(found[room], BUDGET[room], strict=True))]  # fmt: skip


def main() -> int:
    """Prints the house; 1 where an import leads upward or around, or a room is larger than its budget."""
    graph = graph_of(ROOT / PACKAGE)
    size = sizes(ROOT / PACKAGE)
    for room, below in rooms_below(graph).items():
        print("{:12} {:6,} lines {:3} files".format(room, *size[room]), f"imports {' '.join(below) or 'no other room'}")
    print("in all {:,} lines, {} files".format(*map(sum, zip(*size.values(), strict=True))))
    sources = sorted(ROOT.glob("integrations/*/rollout_trace_*"))
    faults = {
        "upward": upward(graph),
        "in a circle": [*circles(graph), *(one for source in sources for one in circles(graph_of(source)))],
        "of an integration": [one for source in sources for one in foreign(source)],
    }
    for what, found in faults.items():
        print(f"imports {what}: {len(found)}", *found, sep="\n    ")
    over = over_budget(ROOT / PACKAGE)
    print(f"rooms over their budget: {len(over)}", *over, sep="\n    ")
    print("doors:", *sorted(f"{module} -> {other}" for module, other in DOORS), sep="\n    ")
    return int(any(faults.values()) or bool(over))


if __name__ == "__main__":
    sys.exit(main())
