"""Tasks of ``rt.collect`` from ``datasets`` and from tables of pandas."""

from __future__ import annotations

from pathlib import Path

import datasets
import pandas
import pytest

from rollout_trace.collection.tasks import load_tasks

ROWS = [{"id": "a", "question": "1+1", "level": 1}, {"id": "b", "question": "2+2", "level": 2}]


def test_a_dataset_and_a_saved_one_hold_the_tasks_of_a_list(tmp_path: Path) -> None:
    dataset = datasets.Dataset.from_list(ROWS)
    dataset.save_to_disk(str(tmp_path / "saved"))
    expected = load_tasks(ROWS)
    assert load_tasks(dataset) == expected
    assert load_tasks(dataset.to_iterable_dataset(), limit=1) == expected[:1]
    assert load_tasks(tmp_path / "saved") == expected
    assert load_tasks(dataset.to_pandas()) == expected
    assert load_tasks(dataset.with_format("numpy"))[1].id == "b"


def test_a_dataset_without_ids_is_numbered_by_content() -> None:
    rows = [{name: value for name, value in row.items() if name != "id"} for row in ROWS]
    assert load_tasks(datasets.Dataset.from_list(rows)) == load_tasks(rows)
    assert load_tasks(pandas.DataFrame(rows)) == load_tasks(rows)


def test_splits_are_refused(tmp_path: Path) -> None:
    splits = datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)})
    with pytest.raises(ValueError, match="a dataset with the splits train: give one of them"):
        load_tasks(splits)
    splits.save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(ValueError, match=r"with the splits train: give one of them, such as .*saved.train"):
        load_tasks(tmp_path / "saved")
    assert [item.id for item in load_tasks(tmp_path / "saved" / "train")] == ["a", "b"]


def test_a_series_is_its_values() -> None:
    assert [item.value for item in load_tasks(pandas.Series(["x", "y"]))] == ["x", "y"]
