"""aider, as a library, on a file of its own folder; `STREAM` asks for a stream."""

import os
import re
import sys
import tempfile
from pathlib import Path

from aider.coders import Coder
from aider.io import InputOutput
from aider.models import Model


def run(question: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "sum.txt")
        file.write_text("?\n")
        coder = Coder.create(
            main_model=Model(f"openai/{os.environ['MODEL']}"),
            io=InputOutput(yes=True, pretty=False, fancy_input=False),
            fnames=[str(file)],
            edit_format="whole",
            use_git=False,
            stream="STREAM" in os.environ,
        )
        coder.run(f"{question} Write the terms into sum.txt.")
        a, b = map(int, re.findall("[0-9]+", file.read_text()))
        return coder.run(f"The sum is {a + b}. What is it?")


if __name__ == "__main__":
    print(run(sys.argv[1]))
