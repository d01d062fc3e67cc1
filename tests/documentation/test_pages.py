"""Each page of the documentation, read from its top to its end in a folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_blocks import blocks_of

from rollout_trace.process.instrument import Instrumentation
from rollout_trace.testing import ScriptedServer

from .reader import Reader, pasted
from .stage import Stage, usual
from .stages import STAGES
from .table import is_read_here, pages_read_here


@pytest.mark.parametrize("page", pages_read_here())
def test_its_blocks_run_and_show_what_comes(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handles: list[Instrumentation] = []
    begin = Instrumentation._begin

    def noted(handle: Instrumentation) -> None:
        handles.append(handle)
        begin(handle)

    monkeypatch.setattr(Instrumentation, "_begin", noted)
    folder = tmp_path / "page"
    folder.mkdir()
    with ScriptedServer(lambda request: stage.answer(request)) as server, pasted(folder) as names:
        stage = Stage(folder, server, names)
        usual(stage)
        setting = STAGES[page](stage) if page in STAGES else iter((None,))
        next(setting)
        for name, value in stage.variables.items():
            monkeypatch.setenv(name, value)
        reader = Reader(folder, stage.names, server.url, stage.variables, stage.tests, outputs=stage.outputs)
        try:
            for block in blocks_of(page):
                if is_read_here(block):
                    reader.read(block)
            reader.run_tests()
            next(setting, None)
        finally:
            for handle in handles:
                handle.undo()
