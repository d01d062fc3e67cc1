"""Rows as Arrow tables. Column types are fixed by the exporter, whatever the rows contain, even without rows.

Types have Arrow's names (``string``, ``int64``, ``float64``, ...); ``list<int32>`` is a list of such, and ``json`` any
value as JSON text in Arrow's own JSON type: ``datasets`` returns the value, other readers text. Lists may be nested,
and take arrays of as many dimensions: ``list<list<list<uint8>>>`` for routed experts. With ``float32?`` NaN is missing
and becomes null; without the question mark it is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import TYPE_CHECKING, Any, TypeAlias

from rollout_trace._wrong_use import import_extra
from rollout_trace.export._values import finite
from rollout_trace.file.plain import dumps

if TYPE_CHECKING:
    Row: TypeAlias = Mapping[str, Any]
    Schema: TypeAlias = "Mapping[str, str] | Any"
    """Types by the name of their column, or a ``pyarrow.Schema``."""

_BATCH_ROWS = 1000
_BATCH_SIZE = 1 << 22
"""Maximum rows of a batch, and maximum total length of their lists and texts."""


def arrow(rows: Iterable[Row], schema: Schema | None = None) -> Any:
    """Makes a ``pyarrow.Table`` of rows.

    Args:
        rows: an exporter's rows, or any mappings. Missing keys become null.
        schema: types by column name, or a ``pyarrow.Schema``. None: the exporter's types, otherwise types inferred from
            the first batch (at most 1000 rows).

    Raises:
        ImportError: pyarrow is not installed.
        ValueError: a row does not fit the schema, or holds a number that is not finite; the message names the row.
    """
    pyarrow = import_package("pyarrow")
    parts = batches(rows, schema)
    first = next(parts)
    return pyarrow.Table.from_batches([first, *parts], first.schema)


def dataset(rows: Iterable[Row], schema: Schema | None = None) -> Any:
    """Makes a ``datasets.Dataset`` of rows, in memory. See ``arrow``.

    Raises:
        ImportError: datasets or pyarrow is not installed.
        ValueError: as for ``arrow``.
    """
    table = arrow(rows, schema)
    return import_package("datasets").Dataset(table)


def batches(
    rows: Iterable[Row], schema: Schema | None, *, max_rows: int = _BATCH_ROWS, max_size: int = _BATCH_SIZE
) -> Iterator[Any]:
    """Yields the rows as record batches of bounded size; without rows, one empty batch with the schema.

    Args:
        rows: see ``arrow``.
        schema: see ``arrow``.
        max_rows: of a batch.
        max_size: of a batch: the total length of its lists and texts. Both limits are for rows with a schema: without
            one, batches have as many rows as types are inferred from.
    """
    import_package("pyarrow")
    if schema is None:
        schema = getattr(rows, "columns", None)
    fields = None if schema is None else arrow_schema(schema)
    gaps = {name for name, word in schema.items() if "?" in word} if isinstance(schema, Mapping) else set()
    if fields is None:
        max_rows, max_size = _BATCH_ROWS, _BATCH_SIZE
    first = 0
    for group in _groups(rows, fields, gaps, max_rows, max_size):
        if fields is None:
            fields = _inferred(group)
        yield _batch(group, first, fields, gaps)
        first += len(group)
        # The generator waits here with its locals: without this, two batches of rows would be in memory at once.
        group.clear()
    if not first:
        if fields is None:
            raise ValueError(
                "there are no rows to take types from: give a schema, such as {'input_ids': 'list<int32>'}."
            )
        yield _batch([], 0, fields, gaps)


_PACKAGES = {"pyarrow": ("Arrow and parquet need", "pyarrow>=19"), "datasets": ("A Dataset needs", "datasets>=4.7")}


def import_package(name: str) -> Any:
    """Imports ``pyarrow`` or ``datasets``; ImportError has the command that installs it."""
    return import_extra(name, *_PACKAGES[name])


def arrow_schema(schema: Schema) -> Any:
    """The ``pyarrow.Schema`` of types by column name; an Arrow schema is returned as it is. Raises ImportError."""
    pa = import_package("pyarrow")
    if isinstance(schema, Mapping):
        return pa.schema([(name, _type(word)) for name, word in schema.items()])
    return schema() if callable(schema) else schema


def _type(word: str) -> Any:
    import pyarrow as pa

    if word == "json":
        return pa.json_()
    if word.endswith("?"):
        return _type(word[:-1])
    if word.startswith("list<") and word.endswith(">"):
        return pa.list_(_type(word[5:-1]))
    return pa.type_for_alias(word)


def _groups(
    rows: Iterable[Row], fields: Any, gaps: Set[str], max_rows: int, max_size: int
) -> Iterator[list[dict[str, Any]]]:
    """Groups of rows of bounded size, with values of JSON columns as text. ``gaps``: columns in which NaN is null."""
    texts = set() if fields is None else {field.name for field in fields if _is_json(field.type)}
    group: list[dict[str, Any]] = []
    size = 0
    for number, row in enumerate(rows):
        for name in gaps & row.keys():
            require_finite(_without_nan(row[name]), number, f"$.{name}")
        values = {
            name: value if name in gaps else _value(value, number, name, name in texts) for name, value in row.items()
        }
        # `_batch` reads the columns of the schema alone: another one would be lost without an error.
        unknown = None if fields is None else next((name for name in values if fields.get_field_index(name) < 0), None)
        if unknown is not None:
            raise ValueError(f"row {number}: the schema has no column {unknown!r}; it has {', '.join(fields.names)}.")
        group.append(values)
        size += sum(map(_size, values.values()))
        if len(group) == max_rows or size >= max_size:
            yield group
            group, size = [], 0
    if group:
        yield group


def _size(value: Any) -> int:
    """Number of items of a list, a text or an array of any dimensions; 0 of anything else."""
    return int(value.size) if hasattr(value, "ndim") else len(value) if hasattr(value, "__len__") else 0


def _without_nan(value: Any) -> Any:
    """The numbers with 0 for NaN; infinities stay."""
    import numpy as np

    return value if value is None else np.nan_to_num(np.asarray(value), nan=0.0, posinf=np.inf, neginf=-np.inf)


def _is_json(kind: Any) -> bool:
    import pyarrow as pa

    return isinstance(kind, pa.JsonType)


def _value(value: Any, number: int, name: str, as_json: bool) -> Any:
    if value is None:
        return None
    require_finite(value, number, f"$.{name}")
    return dumps(value).decode() if as_json else value


def require_finite(value: Any, number: int, path: str = "$") -> None:
    """Raises ValueError for NaN or an infinity in a value, with its path in the row of this number."""

    def refuse(where: str, value: Any) -> None:
        raise ValueError(
            f"row {number}, {where}: {value!r} is not a finite number, and JSON has no form for it. Use None."
        )

    finite(value, refuse, path)


def _inferred(group: list[dict[str, Any]]) -> Any:
    import pyarrow as pa

    names = dict.fromkeys(name for row in group for name in row)
    return pa.schema([(name, _inferred_type([row.get(name) for row in group])) for name in names])


def _inferred_type(values: list[Any]) -> Any:
    import pyarrow as pa

    table = next((value for value in values if getattr(value, "ndim", 0) > 1), None)
    if table is None:
        return pa.array(values).type
    kind = pa.from_numpy_dtype(table.dtype)
    for _ in range(table.ndim):
        kind = pa.list_(kind)
    return kind


def _batch(group: list[dict[str, Any]], first: int, fields: Any, gaps: Set[str]) -> Any:
    import pyarrow as pa

    arrays = [_column([row.get(field.name) for row in group], first, field, field.name in gaps) for field in fields]
    return pa.RecordBatch.from_arrays(arrays, schema=fields)


def _column(values: list[Any], first: int, field: Any, nan_is_null: bool) -> Any:
    try:
        return _array(values, field.type, nan_is_null)
    except (TypeError, ValueError, OverflowError) as error:
        at = next((at for at, value in enumerate(values) if not _fits(value, field.type)), 0)
        raise ValueError(f"row {first + at}, column {field.name!r}: expected {field.type}; {error}.") from None


def _fits(value: Any, kind: Any) -> bool:
    try:
        _array([value], kind)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _array(values: list[Any], kind: Any, nan_is_null: bool = False) -> Any:
    """An Arrow array of this type. Raises where a value does not fit, or Arrow would change a number silently."""
    import numpy as np
    import pyarrow as pa

    nested = any(getattr(value, "ndim", 0) > 1 for value in values)
    array = _nested(values, kind, nan_is_null) if nested else pa.array(values, kind, from_pandas=nan_is_null)
    # Arrow makes 1 of 1.5 in a column of integers, and inf of 1e39 in one of float32: both are errors here.
    numbers = array
    while pa.types.is_list(numbers.type):
        numbers = numbers.flatten()
    if pa.types.is_integer(numbers.type) and any(map(_has_floats, values)):
        raise ValueError("got a number with a decimal point")
    if pa.types.is_floating(numbers.type) and np.isinf(numbers.drop_null().to_numpy()).any():
        raise ValueError("got a number that is too large for it")
    return array


def _nested(values: list[Any], kind: Any, nan_is_null: bool) -> Any:
    """Lists of lists from arrays, without an object for each number. Raises ValueError for other dimensions."""
    import numpy as np
    import pyarrow as pa

    levels, leaf = [], kind
    while pa.types.is_list(leaf):
        levels.append(leaf)
        leaf = leaf.value_type
    arrays = [value if value is None else np.asarray(value) for value in values]
    known = [array for array in arrays if array is not None]
    wrong = next((array for array in known if array.ndim != len(levels)), None)
    if wrong is not None:
        raise ValueError(f"got an array of {wrong.ndim} dimensions")
    made = pa.array(np.concatenate([array.reshape(-1) for array in known]), leaf, from_pandas=nan_is_null)
    for level in range(len(levels) - 1, 0, -1):
        counts = [np.full(int(np.prod(array.shape[:level])), array.shape[level]) for array in known]
        made = pa.ListArray.from_arrays(_offsets(np.concatenate(counts)), made, type=levels[level])
    lengths = np.array([0 if array is None else len(array) for array in arrays])
    missing = pa.array([array is None for array in arrays])
    return pa.ListArray.from_arrays(_offsets(lengths), made, type=kind, mask=missing)


def _offsets(lengths: Any) -> Any:
    import numpy as np
    import pyarrow as pa

    return pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))


def _has_floats(value: Any) -> bool:
    if hasattr(value, "dtype"):
        return bool(value.dtype.kind == "f" and value.size)
    return float in set(map(type, value)) if isinstance(value, (list, tuple)) else isinstance(value, float)
