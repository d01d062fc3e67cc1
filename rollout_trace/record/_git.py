"""The commit of a folder's git repository, and whether tracked files differ from it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

DIRTY_TIMEOUT = 0.03
"""Seconds that ``git status`` may take: in a big repository it takes seconds, and then it is not known."""
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def git_state(folder: str | os.PathLike[str], *, timeout: float = DIRTY_TIMEOUT) -> dict[str, Any] | None:
    """``commit``, ``branch`` and ``dirty`` of the repository that a folder is in; None outside of one.

    ``commit`` is missing before the first one, ``branch`` with a detached HEAD, ``dirty`` where it is not known in
    time, or git is not installed. Files that git does not track do not count.

    Raises:
        OSError: its files cannot be read.
    """
    git_folder = _git_folder(Path(folder))
    if git_folder is None:
        return None
    commit, branch = _head(git_folder)
    dirty = None if commit is None else _is_dirty(folder, timeout)
    found = {"commit": commit, "branch": branch, "dirty": dirty}
    return {name: value for name, value in found.items() if value is not None}


def _git_folder(folder: Path) -> Path | None:
    folder = folder.resolve()
    for one in (folder, *folder.parents):
        place = one / ".git"
        if place.is_dir():
            return place if (place / "HEAD").exists() else None
        if place.is_file():  # A worktree or a submodule.
            target = place.read_text("utf-8", "replace").partition("gitdir:")[2].strip()
            return (one / target) if target else None
    return None


def _head(git_folder: Path) -> tuple[str | None, str | None]:
    """Commit and branch, read from the files that git keeps: faster than git itself."""
    head = (git_folder / "HEAD").read_text("utf-8", "replace").strip()
    if not head.startswith("ref:"):
        return (head if _COMMIT.fullmatch(head) else None), None
    reference = head.partition("ref:")[2].strip()
    branch = reference.removeprefix("refs/heads/")
    if branch == ".invalid":  # Kept in a table that only git reads.
        commit = (_git("rev-parse", "HEAD", folder=git_folder, timeout=DIRTY_TIMEOUT) or "").strip()
        return (commit if _COMMIT.fullmatch(commit) else None), None
    return _resolved(git_folder, reference), branch


def _resolved(git_folder: Path, reference: str, depth: int = 0) -> str | None:
    for folder in (git_folder, _common(git_folder)):
        try:
            text = (folder / reference).read_text("utf-8", "replace").strip()
        except (OSError, ValueError):
            text = _packed(folder, reference) or ""
        if text.startswith("ref:") and depth < 5:
            return _resolved(git_folder, text.partition("ref:")[2].strip(), depth + 1)
        if _COMMIT.fullmatch(text):
            return text
    return None


def _common(git_folder: Path) -> Path:
    """The folder of the references: of a worktree, that of the repository it belongs to."""
    try:
        return git_folder / (git_folder / "commondir").read_text("utf-8", "replace").strip()
    except OSError:
        return git_folder


def _packed(folder: Path, reference: str) -> str | None:
    try:
        with open(folder / "packed-refs", encoding="utf-8", errors="replace") as lines:
            return next((line[: -len(reference) - 2] for line in lines if line.endswith(f" {reference}\n")), None)
    except OSError:
        return None


def _is_dirty(folder: str | os.PathLike[str], timeout: float) -> bool | None:
    question = ("status", "--porcelain", "--untracked-files=no", "--ignore-submodules")
    changes = _git(*question, folder=folder, timeout=timeout)
    return None if changes is None else bool(changes.strip())


def _git(*arguments: str, folder: str | os.PathLike[str], timeout: float) -> str | None:
    """What git prints; None where it fails, is not installed, or takes longer."""
    # Without the variables of a hook that runs this program, and without taking the lock of the index.
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        # No command of the repository's own is run: `core.fsmonitor` may name one.
        done = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", *arguments],
            cwd=folder,
            env={**own, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=timeout,
            check=True,
        )
    except Exception:
        # Not installed, no repository to it, too slow; or the interpreter is ending, and starts no process any more.
        return None
    return done.stdout.decode("utf-8", "replace")
