"""The wheel: what it holds, and that it works where only the wheel is."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "rollout_trace"


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command and give its output; what it said is the message when it fails."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the installed wheel and nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run(*pip, "--no-deps", "--no-index", "--target", folder, wheel, cwd=folder)
    return folder


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    packaged = {name for name in names if ".dist-info/" not in name}
    sources = {
        path.relative_to(ROOT).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.suffix != ".pyc" and not path.name.startswith(".")
    }
    assert packaged == sources
    assert "rollout_trace/py.typed" in packaged
    assert {f"rollout_trace/schema/{path.name}" for path in (PACKAGE / "schema").glob("*.json")} <= packaged
    beside = {name.rpartition("/")[2] for name in names - packaged}
    assert beside == {"METADATA", "WHEEL", "RECORD", "LICENSE", "entry_points.txt"}


def test_the_wheel_says_what_it_needs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        metadata = archive.read(name).decode().partition("\n\n")[0].splitlines()
    required = {line.removeprefix("Requires-Dist: ") for line in metadata if line.startswith("Requires-Dist: ")}
    assert {line for line in required if "extra ==" not in line} == {
        "filelock>=3.13; sys_platform == 'win32'", "msgspec>=0.19", "numpy>=1.26", "orjson>=3.10",
    }  # fmt: skip
    extras = {line.removeprefix("Provides-Extra: ") for line in metadata if line.startswith("Provides-Extra: ")}
    assert extras == {
        "all", "anthropic", "cli", "datasets", "duckdb", "fsspec", "openai", "otel", "parquet", "ray", "rich",
        "tokenizers", "torch", "zstd",
    }  # fmt: skip
    assert "Requires-Python: >=3.10" in metadata
    assert "License-Expression: Apache-2.0" in metadata


def test_the_installed_wheel_works_far_from_the_checkout(installed: Path, tmp_path: Path) -> None:
    """Every public name resolves, and every module that is loaded for it comes from the installed folder."""
    program = f"""
import sys
sys.path.insert(0, {str(installed)!r})
import rollout_trace
for name in rollout_trace.__all__:
    getattr(rollout_trace, name)
for name, module in sorted(sys.modules.items()):
    if name.partition(".")[0] == "rollout_trace":
        print(module.__file__)
"""
    files = run(sys.executable, "-c", program, cwd=tmp_path).splitlines()
    assert str(installed / "rollout_trace" / "__init__.py") in files
    assert [file for file in files if not Path(file).is_relative_to(installed)] == []


def test_the_version_of_the_wheel_is_that_of_the_package(wheel: Path, installed: Path, tmp_path: Path) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(installed)!r})
import rollout_trace
print(rollout_trace.__version__)
"""
    assert wheel.name.split("-")[1] == run(sys.executable, "-c", program, cwd=tmp_path).strip()
