"""Runs the programs and writes what tests/importing reads of it: python -m tests.clis.pack

Texts that are not of our own scripts are replaced, equal ones by equal ones, and so are the paths; tools are cut to the
first of them. Claude Code's hashes are computed anew: that they are its own is what test_claude_code.py shows.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Any

from rollout_trace.importing._claude_code_requests import hash_of
from rollout_trace.testing import RequestRecord, ScriptedServer

from . import claude_code, codex
from .installed import CLAUDE_CODE, CODEX, Place, program
from .served import served

DATA = Path(__file__).parent.parent / "data" / "clis"
_OWN = ("{", "529 {", "text(JSON", "SUBTASK", "<summary>")
_EVENTS = ("token_count", "task_started", "task_complete", "turn_aborted")


class Packer:
    """Writes one run. ``place``: where it ran, which no file may name."""

    def __init__(self, place: Path) -> None:
        self._place = str(place)
        self._slug = self._place.replace("/", "-").replace("_", "-").replace(".", "-")
        self._hashes: dict[str, str] = {}

    def text(self, value: str) -> str:
        """A text without what is not ours."""
        value = value.replace(self._place, "/place").replace(self._slug, "-place")
        if len(value) <= 50 or value.startswith(_OWN):
            return self._hashes.get(value, value)
        if len(value) == 64 and value in self._hashes:
            return self._hashes[value]
        if " " not in value:
            return value
        tag = value[: value.index(">") + 1] if value.startswith("<") and ">" in value[:60] else ""
        kept = " It was listed." if "It was listed." in value else ""
        return f"{tag}text {blake2b(value.encode(), digest_size=4).hexdigest()}{kept}"

    def plain(self, value: Any) -> Any:
        """A value of JSON with each of its texts so."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.plain(one) for one in value]
        if isinstance(value, dict):
            cut = {name: _cut(name, one) for name, one in value.items()}
            return {self.text(name): self.plain(one) for name, one in cut.items()}
        return value

    def requests(self, records: Iterable[RequestRecord], protocol: str) -> list[Any]:
        """What a server was asked: the body and the id of the answer."""
        made = []
        for one in served(protocol, records):
            step, messages = one.step, list(one.step.messages or ())
            for message in messages:
                if protocol == "anthropic.messages":
                    self._hashes[hash_of(message)] = hash_of(self.plain(message))
            fields = {"messages": messages, "tools": step.tools, "sampling": step.sampling, "model": step.model}
            made.append({"status": one.status, "response_id": step.response_id, **self.plain(fields)})
        return made

    def write(self, path: Path, values: Iterable[Any]) -> None:
        """Writes lines."""
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = (json.dumps(one, ensure_ascii=False, separators=(",", ":")) + "\n" for one in values)
        path.write_text("".join(lines), encoding="utf-8")

    def copy(self, folder: Path, to: Path, line: Callable[[Any], Any]) -> None:
        """Writes the files of a folder."""
        for path in sorted(one for one in folder.rglob("*.json*") if one.is_file()):
            name = self.text(str(path.relative_to(folder)))
            self.write(to / name, [self.plain(line(json.loads(one))) for one in path.read_text().splitlines() if one])


def _cut(name: str, value: Any) -> Any:
    if name == "tools" and isinstance(value, list):
        return value[:1]
    if name == "toolUseResult" and isinstance(value, dict):
        return {kept: value[kept] for kept in ("agentId", "totalDurationMs", "durationMs") if kept in value}
    return value


def _claude_line(line: Any) -> Any:
    if line.get("type") == "attachment":
        return {name: value for name, value in line.items() if name != "rendered"} | {"attachment": {"type": "any"}}
    return line


def _codex_line(line: Any) -> Any:
    payload = line["payload"]
    if line["type"] == "world_state" or (line["type"] == "event_msg" and payload["type"] not in _EVENTS):
        payload = {"type": payload.get("type")}
    kept = ("replacement_history", "message", "compaction_response_id")
    if line["type"] == "compacted":
        payload = {name: value for name, value in payload.items() if name in kept}
    return {**line, "payload": payload}


def main() -> None:
    """Writes all."""
    shutil.rmtree(DATA, ignore_errors=True)
    with tempfile.TemporaryDirectory() as root, ScriptedServer(claude_code.script) as server:
        place = Place(Path(root, "one"))
        folder, packer = claude_code.run(program(CLAUDE_CODE), place, server), Packer(place.root)
        packer.write(DATA / "claude_code.jsonl", packer.requests(server.requests, "anthropic.messages"))
        packer.copy(folder, DATA / "claude_code", _claude_line)
    for name, model in (("codex", "some-model"), ("codex_own", codex.OWN_MODEL)):
        with tempfile.TemporaryDirectory() as root, codex.ItemServer(codex.Model()) as items:
            place = Place(Path(root, "one"))
            folder, packer = codex.run(program(CODEX), place, items, model), Packer(place.root)
            packer.write(DATA / f"{name}.jsonl", packer.requests(items.requests, "openai.responses"))
            packer.copy(folder, DATA / name, _codex_line)


if __name__ == "__main__":
    main()
