"""The page docs/collect.md: its files and programs, in their order, in one folder, and what it says they print."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import rollout_trace as rt
from rollout_trace.testing import ScriptedServer
from tests.file.processes import environment

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "collect.md").read_text()
ELSEWHERE = ('executor="ray"', "rt.RayExecutor", "ray start")
"""In blocks that need Ray, which has an environment of its own: tests/collect_ray."""
_BLOCK = re.compile(r"(?P<before>[^\n]*)\n\n```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`(?P<name>\w+\.(?:py|jsonl|toml))`:$")
_SHIM = f"""#!{sys.executable}
import sys
from rollout_trace.cli import main
sys.exit(main())
"""


class Block(NamedTuple):
    """One block of the page."""

    kind: str
    text: str
    name: str | None
    """Of the file that it is."""


def blocks() -> Iterator[Block]:
    for found in _BLOCK.finditer(PAGE):
        name = _FILE.search(found["before"])
        yield Block(found["kind"], found["text"], None if name is None else name["name"])


def model(request: Mapping[str, Any]) -> str:
    """Adds the numbers of the question."""
    return f"It is {sum(map(int, re.findall(r'[0-9]+', request['messages'][-1]['content'])))}."


def test_every_block_runs(tmp_path: Path) -> None:
    folder, commands = tmp_path / "page", tmp_path / "bin"
    folder.mkdir()
    commands.mkdir()
    shim = commands / "rollout-trace"
    shim.write_text(_SHIM)
    shim.chmod(shim.stat().st_mode | stat.S_IXUSR)
    printed = ""
    with ScriptedServer(model) as server:
        variables = environment() | {
            "MODEL_ADDRESS": server.base_url,
            "PATH": os.pathsep.join([str(commands), str(Path(sys.executable).parent), os.environ["PATH"]]),
            # The clients of the page are not closed, as those of most programs.
            "PYTHONWARNINGS": "error,ignore::ResourceWarning",
            "COLUMNS": "120",
        }
        for number, block in enumerate(blocks()):
            if any(word in block.text for word in ELSEWHERE):
                continue
            if block.kind == "text":
                assert_printed(block.text, printed)
                continue
            path = folder / (block.name or f"block_{number}.py")
            if block.kind != "bash" and (block.name or block.kind == "python"):
                path.write_text(block.text)
            if path.name in ("agent.py", "solver.py") or block.kind in ("json", "toml"):
                continue
            command = [sys.executable, path.name] if block.kind == "python" else ["bash", "-e", "-c", block.text]
            done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=300)
            printed = done.stdout + done.stderr
            assert done.returncode == 0, f"{block.text}\n{printed}"
    trajectories = list(rt.read(folder / "rollouts.jsonl"))
    assert {one.status for one in trajectories} == {"completed"}
    assert {one.reward for one in trajectories} == {1.0}


def assert_printed(shown: str, printed: str) -> None:
    """Each line that the page shows was printed, whatever the numbers are."""
    found = {_without_numbers(re.sub(r"/\S*/rollouts\.jsonl", "OUTPUT", line)) for line in printed.splitlines()}
    missing = [line for line in shown.splitlines() if _without_numbers(line) not in found]
    assert not missing, f"{missing}\nare not in\n{printed}"


def _without_numbers(line: str) -> str:
    # A number may be wider, or have another unit, on another machine.
    return re.sub(r"\s+", " ", re.sub(r"\d[\d.,:]*|[0-9a-f]{24}", "#", line)).strip()


def test_the_page_is_linked_to_pages_that_exist() -> None:
    for name in re.findall(r"\]\((\w[\w-]*\.md)", PAGE):
        assert (ROOT / "docs" / name).exists(), name
