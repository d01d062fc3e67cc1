"""``rollout-trace convert``: what the exporters give, in files, and what is said of what was left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace import export
from rollout_trace.file.plain import dumps
from rollout_trace.view.formats import FORMATS

from .command import command
from .runs import write_runs

NEEDED = {"verl_prompts": {"data_source": "d", "ability": "a"}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_runs(tmp_path / "a.jsonl")
    return tmp_path


def test_every_exporter_has_a_format() -> None:
    helpers = {"arrow", "batches", "dataset", "features", "otel", "trl_rollout"}
    names = {
        name for name in export.__all__ if name[0].islower() and not name.startswith("write") and name not in helpers
    }
    assert set(FORMATS) == names


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("skyrl", "atif", "distillation")])
def test_rows_are_those_of_the_exporter(name: str, folder: Path) -> None:
    needed = NEEDED.get(name, {})
    options = [part for option, value in needed.items() for part in ("--option", f"{option}={value}")]
    done = command(folder, "convert", "a.jsonl", "--to", name, "-o", "out.jsonl", "--json", *options)
    assert (done.code, done.err) == (0, "")
    expected: list[Any] = getattr(export, name)(rt.read(folder / "a.jsonl"), **needed)
    written = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert (done.json["read"], done.json["written"]) == (12, len(expected))
    assert len(written) == len(expected) > 0
    assert [sorted(row) for row in written] == [sorted(row) for row in expected]
    if name == "trl":
        assert written == json.loads(dumps(list(expected)))


def test_one_row_is_one_row(folder: Path) -> None:
    done = command(folder, "convert", "a.jsonl", "--to", "trl", "-o", "one.jsonl", "--where", "id == 't00'")
    assert done.out.splitlines()[0] == "1 row of 12 trajectories in one.jsonl"


def test_parquet_skyrl_and_atif(folder: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert (
        command(folder, "convert", "a.jsonl", "--to", "trl", "-o", "x/sft.parquet", "--where", "reward == 1").code == 0
    )
    assert parquet.read_table(folder / "x/sft.parquet").num_rows == 6
    assert command(folder, "convert", "a.jsonl", "--to", "skyrl", "-o", "s.json").code == 0
    assert len(json.loads((folder / "s.json").read_text())["response_ids"]) == 12
    done = command(folder, "convert", "a.jsonl", "--to", "atif", "-o", "docs")
    assert (done.code, done.out.splitlines()[0]) == (0, "12 documents of 12 trajectories in docs")
    assert json.loads((folder / "docs/t00.json").read_text())["schema_version"] == "ATIF-v1.8"


def test_what_is_left_out_is_printed_once_and_strict_writes_nothing(folder: Path) -> None:
    done = command(folder, "convert", "a.jsonl", "--to", "distillation", "-o", "out.jsonl")
    assert done.code == 1
    assert "left out: rows without the teacher's scores: 12" in done.out.splitlines()
    assert done.err == ""
    done = command(folder, "convert", "a.jsonl", "--to", "distillation", "-o", "strict.jsonl", "--strict")
    assert (done.code, done.out) == (2, "")
    assert "rows without the teacher's scores" in done.err
    assert "Without --strict it would be left out" in done.err
    assert not (folder / "strict.jsonl").exists()


def test_options_are_typed_by_the_exporter(folder: Path) -> None:
    args = ["convert", "a.jsonl", "-o", "out.jsonl", "--overwrite", "--to"]
    done = command(folder, *args, "trl", "--option", "max_length=6", "--option", "truncate=token")
    assert (done.code, "tokens cut: max_length" in done.out) == (0, True)
    assert {len(json.loads(line)["input_ids"]) for line in (folder / "out.jsonl").read_text().splitlines()} == {6}
    assert command(folder, *args, "chat", "--option", "columns=", "--option", "reasoning=none").code == 0
    assert set(json.loads((folder / "out.jsonl").read_text().splitlines()[0])) == {"messages"}
    for name, option, message in (
        ("trl", "max_length=many", "max_length='many': expected a whole number"),
        ("trl", "linear=perhaps", "linear='perhaps': expected true or false"),
        ("trl", "length=3", "trl has no option 'length'; it has linear, on_drift, within, max_length"),
        ("trl", "on_drift", "'on_drift' is not an option; give name=value"),
        ("trl", "on_drift=ignore", "on_drift"),
        ("trl_kto", "threshold=x", "threshold='x': expected a number"),
        ("verl_prompts", "split=train", "verl_prompts needs --option data_source=... and --option ability=..."),
    ):
        done = command(folder, *args, name, "--option", option)
        assert (done.code, done.out) == (2, ""), option
        assert message in done.err
        assert "Traceback" not in done.err


def test_mistakes(folder: Path) -> None:
    before = (folder / "a.jsonl").read_bytes()
    for args, message in (
        (["a.jsonl"], "--to FORMAT is missing. Formats: chat, steps, turns, exchanges, trl"),
        (["a.jsonl", "--to", "csv", "-o", "x"], "there is no format 'csv'"),
        (["--to", "trl", "-o", "x.jsonl"], "name a file to convert"),
        (["a.jsonl", "--to", "trl"], "-o OUT is missing; trl is written to .jsonl"),
        (["a.jsonl", "--to", "skyrl", "-o", "x.jsonl"], "skyrl is written to .json: one object"),
        (["a.jsonl", "--to", "trl", "-o", "a.jsonl", "--overwrite"], "is one of the files to convert"),
        (["a.jsonl", "--to", "trl", "-o", "a.notes.jsonl"], "exists. Give a new name"),
    ):
        done = command(folder, "convert", *args)
        assert (done.code, message in done.err) == (2, True), (args, done.err)
    assert (folder / "a.jsonl").read_bytes() == before


def test_damaged_lines_are_left_out_and_named(folder: Path) -> None:
    text = (folder / "a.jsonl").read_text()
    done = command(folder, "convert", "-", "--to", "trl", "-o", "out.jsonl", stdin=f"{text}x\n")
    assert (done.code, done.err.partition(":")[0]) == (1, "stdin, line 13")


def test_list_names_every_format_with_its_options(tmp_path: Path) -> None:
    done = command(tmp_path, "convert", "--list", "--json")
    assert {one["format"] for one in done.json["formats"]} == set(FORMATS)
    assert all(one["keeps"] and one["loses"] and one["for"] for one in done.json["formats"])
    text = command(tmp_path, "convert", "--list").out
    assert all(f"\n{name}: " in f"\n{text}" for name in FORMATS)
    assert "max_length" in command(tmp_path, "convert", "--list", "--to", "trl").out


def test_the_pages_have_every_name_and_format() -> None:
    from rollout_trace.view.expression_names import NAMES
    from rollout_trace.view.expression_values import FUNCTIONS

    docs = Path(__file__).parents[2] / "docs"
    page = (docs / "filter.md").read_text()
    for name, one in NAMES.items():
        assert f"| `{name}` | {one.meaning} |" in page
    for function in FUNCTIONS.values():
        assert f"`{function.usage}`" in page
    for form in FORMATS.values():
        assert f"| `{form.name}` | {form.consumer} | {form.keeps} | {form.loses} |" in page
