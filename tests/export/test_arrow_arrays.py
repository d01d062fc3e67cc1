"""Arrays of several dimensions, and numbers that are missing, in Arrow and parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from rollout_trace import export
from rollout_trace.export import ExportReport
from tests.consumers import extras

EXPERTS = {"experts": "list<list<list<uint8>>>"}


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32])
@pytest.mark.parametrize("given", [True, False], ids=["schema", "inferred"])
def test_experts_come_back_bit_for_bit(tmp_path: Path, dtype: Any, given: bool) -> None:
    name = np.dtype(dtype).name
    made = [extras.experts(0, 5, dtype), None, extras.experts(7, 9, dtype), extras.experts(0, 1, dtype)[:0]]
    path = tmp_path / "rows.parquet"
    schema = {"experts": f"list<list<list<{name}>>>"} if given else None
    assert export.write_parquet(path, [{"experts": one} for one in made], schema) == 4
    column = pyarrow.parquet.read_table(path).column("experts")
    assert str(column.type).replace("element: ", "").replace("item: ", "") == f"list<list<list<{name}>>>"
    found = column.to_pylist()
    assert found == [None if one is None else one.tolist() for one in made]


def test_an_array_that_cannot_be_written_or_is_a_view_is_taken() -> None:
    made = extras.experts(0, 6)[::2].transpose(0, 2, 1)
    made.flags.writeable = False
    assert export.arrow([{"experts": made}], EXPERTS).column("experts").to_pylist() == [made.tolist()]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros((2, 3), np.uint8), "got an array of 2 dimensions"),
        (np.full((1, 1, 1), 300), "300"),
        (np.zeros((1, 1, 1), np.float32), "got a number with a decimal point"),
    ],
)
def test_an_array_that_does_not_fit_is_refused(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=rf"row 1, column 'experts': expected .*{message}"):
        export.arrow([{"experts": extras.experts(0, 2)}, {"experts": value}], EXPERTS)


SCORES = {"scores": "list<float32?>", "tops": "list<list<float32?>>"}


def test_nan_is_null_where_the_schema_has_a_question_mark() -> None:
    scores = np.array([np.nan, -0.5, -9999.0], np.float32)
    tops = np.array([[np.nan, np.nan], [-0.25, np.nan]], np.float32)
    table = export.arrow([{"scores": scores, "tops": tops}, {"scores": None, "tops": None}], SCORES)
    assert table.column("scores").to_pylist() == [[None, -0.5, -9999.0], None]
    assert table.column("tops").to_pylist() == [[[None, None], [-0.25, None]], None]
    assert table.schema.field("scores").type == pa.list_(pa.float32())
    assert export.arrow([{"scores": [float("nan"), -0.5]}], SCORES).column("scores").to_pylist() == [[None, -0.5]]


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_infinity_is_refused_there_too(value: float) -> None:
    with pytest.raises(ValueError, match=r"row 0, \$\.scores\[1\]: -?inf is not a finite number"):
        export.arrow([{"scores": np.array([np.nan, value])}], SCORES)
    with pytest.raises(ValueError, match=r"row 0, \$\.scores\[0\]: nan is not a finite number"):
        export.arrow([{"scores": np.array([np.nan, -0.5])}], {"scores": "list<float32>"})


@pytest.mark.parametrize("name", ["slime", "verl"])
def test_rows_of_exporters_with_arrays_can_be_written(tmp_path: Path, name: str) -> None:
    field = {"slime": "rollout_routed_experts", "verl": "routed_experts"}[name]
    rows = getattr(export, name)([extras.run(), extras.run()], report=ExportReport())
    export.write_parquet(tmp_path / "rows.parquet", [{field: row[field]} for row in rows])
    found = pyarrow.parquet.read_table(tmp_path / "rows.parquet").column(field).to_pylist()
    assert found == [extras.experts(0, 6).tolist()] * 2


def test_batches_are_bounded_by_all_numbers_of_an_array() -> None:
    """A row of experts has few positions and many numbers."""
    made = [{"experts": np.zeros((1000, 48, 8), np.uint8)} for _ in range(24)]
    assert len(export.arrow(made, EXPERTS).column("experts").chunks) == 3
