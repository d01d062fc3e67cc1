"""What is in the wheels and sdists of all distributions, and that it is the same bytes wherever they are built."""

from __future__ import annotations

import base64
import csv
import functools
import hashlib
import io
import re
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata
from packaging.version import Version
from readme_renderer import markdown

from tests.release.conftest import NAMES, Built
from tests.release.distributions import ROOT, check, projects, run

EACH = pytest.mark.parametrize("name", NAMES)


@functools.cache
def contents(file: Path) -> dict[str, bytes]:
    """The files of a wheel, or of a sdist without its outer folder: name to bytes."""
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    with tarfile.open(file) as packed:
        files = {member.name: packed.extractfile(member) for member in packed.getmembers()}
        return {name.partition("/")[2]: found.read() for name, found in files.items() if found is not None}


def package_of(project: Path) -> Path:
    """The folder that is imported."""
    (found,) = project.glob("rollout_trace*/__init__.py")
    return found.parent


def metadata_of(wheel: Path) -> Metadata:
    """The metadata of a wheel, which is checked by the rules of its version."""
    (found,) = (data for name, data in contents(wheel).items() if name.endswith(".dist-info/METADATA"))
    return Metadata.from_email(found, validate=True)


def test_an_index_takes_all_of_them(built: Built) -> None:
    assert len(built.files) == 2 * len(NAMES) == 16
    check(built.files)


def test_a_second_build_elsewhere_gives_the_same_bytes(built: Built, again: Built) -> None:
    """Each wheel of the second is made from its sdist, so that this holds for them too."""
    first, second = ({file.name: file.read_bytes() for file in one.files} for one in (built, again))
    assert sorted(first) == sorted(second)
    assert [name for name in first if first[name] != second[name]] == []
    with zipfile.ZipFile(built.wheel("rollout-trace")) as archive:
        assert {one.date_time for one in archive.infolist()} == {(2023, 11, 14, 22, 13, 20)}


@EACH
def test_a_wheel_holds_the_package_and_nothing_else(name: str, built: Built) -> None:
    package = package_of(built.project(name))
    files = {one for one in contents(built.wheel(name)) if not one.endswith("/")}
    packaged = {one for one in files if ".dist-info/" not in one}
    assert packaged == {
        path.relative_to(package.parent).as_posix()
        for path in package.rglob("*")
        if path.is_file() and path.suffix != ".pyc" and not path.name.startswith(".")
    }
    assert f"{package.name}/py.typed" in packaged
    beside = {one.partition(".dist-info/")[2] for one in files - packaged}
    assert beside == {"METADATA", "WHEEL", "RECORD", "licenses/LICENSE", "entry_points.txt"}


@EACH
def test_the_record_of_a_wheel_is_right(name: str, built: Built) -> None:
    files = contents(built.wheel(name))
    (record,) = (one for one in files if one.endswith(".dist-info/RECORD"))
    rows = {path: (digest, size) for path, digest, size in csv.reader(io.StringIO(files[record].decode()))}
    assert rows.pop(record) == ("", "")
    assert rows == {
        path: (f"sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip('=')}", str(len(data)))
        for path, data in files.items()
        if path != record
    }


@EACH
def test_nothing_of_this_machine_is_in_them(name: str, built: Built) -> None:
    places = [str(place).encode() for place in (ROOT, built.folder)]
    for file in (built.wheel(name), built.sdist(name)):
        assert [one for one, data in contents(file).items() if any(place in data for place in places)] == []


@EACH
def test_a_sdist_holds_what_its_reader_needs(name: str, built: Built) -> None:
    project, files = built.project(name), contents(built.sdist(name))
    assert {"LICENSE", "PKG-INFO", "README.md", "pyproject.toml"} <= set(files)
    assert any(re.match(r"tests/test_\w+\.py", one) for one in files)
    assert [one for one in files if "__pycache__" in one or one.startswith((".venv", ".mypy_cache", "dist/"))] == []
    assert files["LICENSE"] == (ROOT / "LICENSE").read_bytes()
    package = package_of(project).name
    assert {one for one in files if one.startswith(f"{package}/")} == {
        one for one in contents(built.wheel(name)) if one.startswith(f"{package}/")
    }


def test_tests_run_in_an_unpacked_sdist(unpacked: Path) -> None:
    where = "import rollout_trace; print(rollout_trace.__file__)"
    assert run(sys.executable, "-c", where, cwd=unpacked).strip() == str(unpacked / "rollout_trace" / "__init__.py")
    assert run(sys.executable, "-m", "rollout_trace", "--version", cwd=unpacked).startswith("rollout-trace ")
    tests = ("tests/test_house.py", "tests/file/test_format.py", "tests/examples/test_quickstart.py")
    assert re.search(r" passed(, \d+ deselected)? in ", run(sys.executable, "-m", "pytest", "-q", *tests, cwd=unpacked))


@EACH
def test_the_description_is_shown_by_an_index_and_leads_nowhere_else(name: str, built: Built) -> None:
    """Links and pictures of files would lead nowhere on an index: an integration has none, the core's are taken out."""
    found = metadata_of(built.wheel(name))
    assert found.description_content_type == "text/markdown"
    assert found.description is not None
    shown = markdown.render(found.description)
    assert shown is not None
    assert "<pre" in shown
    assert [to for to in re.findall(r'(?:href|src)="([^"]*)"', shown) if not to.startswith(("https://", "#"))] == []
    assert "](docs/" not in shown
    code = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
    assert code.findall(found.description) == code.findall((built.project(name) / "README.md").read_text())


@EACH
def test_metadata(name: str, built: Built) -> None:
    found = metadata_of(built.wheel(name))
    assert found.name == name
    assert found.summary is not None
    assert 30 < len(found.summary) < 120
    assert (found.license_expression, found.license_files) == ("Apache-2.0", ["LICENSE"])
    assert found.author == "The rollout_trace authors"
    assert {"agent", "llm", "reinforcement-learning", "rollout"} <= set(found.keywords or [])
    assert found.keywords == sorted(found.keywords or [])
    # There is no address yet, and none is made up.
    assert (found.project_urls, found.home_page) == (None, None)


def test_the_core_needs_little(built: Built) -> None:
    found = metadata_of(built.wheel("rollout-trace"))
    assert {str(one) for one in found.requires_dist or [] if "extra" not in str(one.marker)} == {
        'filelock>=3.13; sys_platform == "win32"', "msgspec>=0.19", "numpy>=1.26", "orjson>=3.10",
    }  # fmt: skip
    assert set(found.provides_extra or []) == {
        "all", "anthropic", "cli", "clis", "datasets", "fsspec", "openai", "otel", "parquet", "ray", "rich",
        "tokenizers", "torch", "zstd",
    }  # fmt: skip


@EACH
def test_it_names_only_pythons_that_it_takes(name: str, built: Built) -> None:
    found = metadata_of(built.wheel(name))
    assert found.requires_python is not None
    stated = [one.rpartition(" ")[2] for one in found.classifiers or [] if re.search(r":: 3\.\d+$", one)]
    assert stated == sorted(set(stated), key=Version)
    assert [one for one in stated if one not in found.requires_python] == []
    assert "3.11" in stated, "CI runs it"
    rest = [one for one in found.classifiers or [] if not re.search(r":: 3\.\d+$", one)]
    core = [one for one in metadata_of(built.wheel("rollout-trace")).classifiers or [] if one in rest]
    assert rest == core
    assert "Typing :: Typed" in rest


def test_all_projects_are_built() -> None:
    assert len(projects()) == 1 + len(list((ROOT / "integrations").glob("rollout-trace-*")))
