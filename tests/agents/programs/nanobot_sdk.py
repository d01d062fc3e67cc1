"""nanobot as a library, with its tool for files. It asks its model for streams alone."""

import asyncio
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from nanobot import Nanobot


async def run(question: str) -> str:
    # Its prompt names the folder that it works in: the same one each time.
    folder = Path(tempfile.gettempdir(), f"nanobot-{hashlib.sha256(question.encode()).hexdigest()[:16]}")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        return await answer(question, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def answer(question: str, folder: Path) -> str:
    work = folder / "work"
    work.mkdir(parents=True)
    config = {
        "providers": {"vllm": {"apiKey": "none", "apiBase": os.environ["MODEL_URL"]}},
        "agents": {"defaults": {"model": os.environ["MODEL"], "provider": "vllm", "workspace": str(work)}},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (work / "sum.txt").write_text(f"The sum is {sum(map(int, re.findall('[0-9]+', question)))}.")
    bot = Nanobot.from_config(folder / "config.json")
    return (await bot.run(question)).content


if __name__ == "__main__":
    print(asyncio.run(run(sys.argv[1])))
