"""A part of a bench is called as a program, from wherever it lies."""

from __future__ import annotations

import subprocess
from pathlib import Path

from processes import unmeasured

from train.bench import sides


def test_the_main_of_a_module_beside_it_gets_the_words_and_the_environment(tmp_path: Path) -> None:
    place = tmp_path / "train" / "bench"
    place.mkdir(parents=True)
    for folder in (place, place.parent):
        (folder / "__init__.py").touch()
    (place / "echo.py").write_text("def main(words, environ): print(words, environ['A'])")
    command = sides.command("echo", "one", "two")
    command[3] = str(tmp_path)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**unmeasured(), "A": "b"}, cwd="/")
    assert (done.stdout, done.stderr) == ("['one', 'two'] b\n", "")
