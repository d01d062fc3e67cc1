"""The distributions, built once for all tests of this folder."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.release.distributions import ROOT, build, name_of, projects

DATE = "1700000000"
"""Of all files in the distributions, in seconds since 1970: 2023-11-14 22:13:20."""
NAMES = [name_of(project) for project in projects()]
# Left by tools and by runs in any checkout.
LITTER = ("rollouts.jsonl", "rollout_trace/__pycache__/errors.cpython-310.pyc", ".mypy_cache/a.json", "dist/old.whl")


@dataclass(frozen=True)
class Built:
    """The distributions that were built from one checkout."""

    root: Path
    """The checkout."""
    folder: Path
    """Where they are."""
    files: list[Path]

    def wheel(self, name: str) -> Path:
        """The wheel of a distribution."""
        return self._one(name, "-py3-none-any.whl")

    def sdist(self, name: str) -> Path:
        """The sdist of a distribution."""
        return self._one(name, ".tar.gz")

    def project(self, name: str) -> Path:
        """The folder that a distribution was built from."""
        return next(project for project in projects(self.root) if name_of(project) == name)

    def _one(self, name: str, end: str) -> Path:
        start = f"{name.replace('-', '_')}-"
        (found,) = (file for file in self.files if file.name.startswith(start) and file.name.endswith(end))
        return found


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Of this checkout: sdists, and wheels that are not made from them."""
    folder = tmp_path_factory.mktemp("built")
    return Built(ROOT, folder, build(ROOT, folder, "--sdist", "--wheel", date=DATE))


@pytest.fixture(scope="session")
def unpacked(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The core's sdist, unpacked: the whole project, without git."""
    folder = tmp_path_factory.mktemp("unpacked")
    shutil.unpack_archive(built.sdist("rollout-trace"), folder, filter="data")
    (found,) = folder.iterdir()
    return found


@pytest.fixture(scope="session")
def again(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Of a copy of the core's sdist, with other times and modes and with litter: sdists, and wheels made from them."""
    root = tmp_path_factory.mktemp("again") / "copy"
    shutil.copytree(unpacked, root, copy_function=shutil.copyfile)
    for path in root.rglob("*.py"):
        path.chmod(0o600)
    for project in projects(root):
        for litter in LITTER:
            (project / litter).parent.mkdir(parents=True, exist_ok=True)
            (project / litter).write_text("litter")
    folder = tmp_path_factory.mktemp("built-again")
    return Built(root, folder, build(root, folder, date=DATE))
