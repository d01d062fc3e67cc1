"""Builds every distribution of the project, and checks them as a package index would: `make dist`.

    python -m tests.release.distributions dist

A sdist and, from it, a wheel of the core and of each integration go into the folder, which must be new or empty.
Nothing is uploaded. The same commit gives the same bytes anywhere.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def projects(root: Path = ROOT) -> list[Path]:
    """The folders with a distribution each, the core's first."""
    return [root, *sorted(path.parent for path in root.glob("integrations/*/pyproject.toml"))]


def name_of(project: Path) -> str:
    """Name of the distribution of a folder."""
    return project.name if project.parent.name == "integrations" else "rollout-trace"


def build(root: Path, folder: Path, *what: str, date: str) -> list[Path]:
    """Builds each project of a checkout into the folder, two at a time; what is there then, sorted.

    Args:
        root: the checkout.
        folder: where they go.
        what: ``--sdist`` and ``--wheel``: both from the checkout. Nothing: the wheel from the sdist.
        date: seconds since 1970, the time of all files.

    Raises:
        RuntimeError: one cannot be built; with the output.
    """
    command = (sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), *what)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": date}
    with ThreadPoolExecutor(2) as two:
        list(two.map(lambda project: run(*command, str(project), environment=environment), projects(root)))
    return sorted(folder.iterdir())


def check(files: list[Path]) -> None:
    """Looks at files as an index does.

    Raises:
        RuntimeError: it would refuse one, or show no description; or a wheel holds what it should not.
    """
    run(sys.executable, "-m", "twine", "check", "--strict", *map(str, files))
    run(sys.executable, "-m", "check_wheel_contents", *(str(file) for file in files if file.suffix == ".whl"))


def run(*command: str, cwd: Path | None = None, environment: Mapping[str, str] | None = None) -> str:
    """What a command prints to stdout.

    Raises:
        RuntimeError: it failed; with all that it printed.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=cwd, env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def date_of(root: Path) -> str:
    """Time of the checkout's last commit, in seconds since 1970; of its changelog where it has no git."""
    if (root / ".git").exists():
        return run("git", "log", "-1", "--format=%ct", cwd=root).strip()
    return str(int((root / "CHANGELOG.md").stat().st_mtime))


def _report(files: list[Path]) -> Iterator[str]:
    for file in files:
        yield f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.stat().st_size / 1e3:7.0f} kB  {file}"


def main() -> int:
    """Builds, checks, and prints what there is to upload."""
    folder = Path(sys.argv[1])
    if folder.exists() and any(folder.iterdir()):
        print(f"{folder}/ is not empty: rm -r {folder}", file=sys.stderr)
        return 2
    files = build(ROOT, folder, date=date_of(ROOT))
    check(files)
    print(*_report(files), sep="\n")
    print(f"\nNothing was uploaded. To publish these {len(files)} files:\n  twine upload {folder}/*")
    return 0


if __name__ == "__main__":
    sys.exit(main())
