"""A copy of a task's repository, and the tools with which a model works on it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import rollout_trace as rt
import sandbox

HERE = Path(__file__).parent
MOST_CHARACTERS = 10_000
"""Of a file that the model reads."""
MOST_FILES = 200
"""That are listed."""


def _tool(name: str, description: str, **parameters: str) -> dict[str, Any]:
    properties = {key: {"type": "string", "description": text} for key, text in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"name": name, "description": description, "parameters": schema}


TOOLS = [
    _tool("list_files", "Lists the files of the repository."),
    _tool("read_file", "Returns the text of a file.", path="relative to the repository, for example src/main.py"),
    _tool(
        "edit_file",
        "Replaces a text in a file. With an empty old text it makes a new file.",
        path="relative to the repository",
        old="the text to replace; it must be in the file exactly once",
        new="what to put there",
    ),
    _tool("run", "Runs Python in the repository.", command="for example: python -m unittest"),
]
"""Name, description and JSON Schema of each; every API wraps them in its own way."""


class ToolError(Exception):
    """A tool cannot do what the model asked for; the message is for the model."""


class Workspace:
    """A folder of its own with a copy of a repository; deleted when its ``with`` block ends."""

    def __init__(self, repo: str, limits: sandbox.Limits | None = None) -> None:
        self.repo = HERE / "repositories" / repo
        self.limits = limits or sandbox.Limits()
        self._place = tempfile.TemporaryDirectory(prefix="coding-agent-", ignore_cleanup_errors=True)
        place = Path(self._place.name).resolve()
        self.folder, self.home = place / repo, place / "home"
        self.home.mkdir()
        shutil.copytree(self.repo, self.folder)

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._place.cleanup()

    # What the model calls

    def call(self, name: str, arguments: str | Mapping[str, Any], tool_call_id: str) -> str:
        """Runs a tool, and records that it ran.

        Args:
            name: of the tool.
            arguments: JSON, as OpenAI's API gives them, or decoded, as Anthropic's does.
            tool_call_id: the model's.

        Raises:
            ToolError: there is no such tool, the arguments do not fit, or it cannot be done.
        """
        tools: dict[str, Callable[..., str]] = {
            "list_files": self.list_files,
            "read_file": self.read_file,
            "edit_file": self.edit_file,
            "run": self.run,
        }
        with rt.tool_run(name, tool_call_id=tool_call_id, arguments=arguments) as run:
            if name not in tools:
                raise ToolError(f"there is no tool {name!r}")
            try:
                result = run.result = tools[name](**_checked(name, arguments))
            except (OSError, ValueError) as error:  # no such folder, a zero byte, half of a character
                raise ToolError(str(error)) from None
            return result

    def list_files(self) -> str:
        """The paths of all files, one a line."""
        names = [name.encode(errors="replace").decode() for name in sorted(files(self.folder))]
        return "\n".join(names[:MOST_FILES] + [f"[and {len(names) - MOST_FILES} more]"] * (len(names) > MOST_FILES))

    def read_file(self, path: str) -> str:
        """The text of a file."""
        text = self._text(path)
        return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}\n[cut: {len(text)} characters]"

    def edit_file(self, path: str, old: str, new: str) -> str:
        """Replaces a text that is in a file once, or makes a new file."""
        place = self._path(path)
        if not old:
            if place.exists():
                raise ToolError(f"{path} exists: say which text of it to replace")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(new.encode())
            return f"made {path}"
        text = self._text(path)
        if text.count(old) != 1:
            raise ToolError(f"the old text is in {path} {text.count(old)} times; it must be there exactly once")
        place.write_bytes(text.replace(old, new).encode())
        return f"changed {path}"

    def run(self, command: str) -> str:
        """What a Python command printed, and how it ended."""
        try:
            program, *arguments = shlex.split(command) or [""]
        except ValueError as error:
            raise ToolError(f"the command cannot be read: {error}") from None
        if program not in ("python", "python3"):
            raise ToolError(f"{program!r} cannot be run here, only python")
        done = sandbox.run([sys.executable, *arguments], self.folder, self.home, self.limits)
        end = f"killed after {self.limits.seconds:g} s" if done.timed_out else f"exit code {done.returncode}"
        # The same whatever the folder is called: else equal attempts would have different tokens.
        return f"{done.output.replace(f'{self.folder}/', '').rstrip()}\n[{end}]".lstrip()

    def _path(self, name: str) -> Path:
        """The place of a file inside the folder, links followed."""
        try:
            place = (self.folder / name).resolve()
        except RuntimeError as error:  # links in a circle
            raise ToolError(str(error)) from None
        if not place.is_relative_to(self.folder):
            raise ToolError(f"{name} is outside of the repository")
        return place

    def _text(self, name: str) -> str:
        place = self._path(name)
        if not place.is_file():
            raise ToolError(f"there is no file {name}")
        try:
            return place.read_bytes().decode()
        except UnicodeDecodeError:
            raise ToolError(f"{name} is no text") from None


def files(folder: Path) -> dict[str, bytes]:
    """The regular files below a folder with their contents. Links are left out: they may lead out of it."""
    found = {}
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            path = Path(place, name)
            if path.is_file() and not path.is_symlink():
                found[path.relative_to(folder).as_posix()] = path.read_bytes()
    return found


def _checked(name: str, arguments: str | Mapping[str, Any]) -> dict[str, str]:
    """The arguments of a tool: all that it has, all texts."""
    wanted = next(tool["parameters"]["required"] for tool in TOOLS if tool["name"] == name)
    try:
        given = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
    except ValueError as error:
        raise ToolError(f"the arguments are no JSON: {error}") from None
    if not isinstance(given, Mapping) or set(given) != set(wanted):
        raise ToolError(f"{name} takes the arguments {', '.join(wanted) or '(none)'}")
    if not all(isinstance(value, str) for value in given.values()):
        raise ToolError(f"the arguments of {name} are texts")
    return dict(given)
