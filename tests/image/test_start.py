"""What a container runs for the words it is given."""

from __future__ import annotations

from pathlib import Path

import pytest
from containers import Image, mounted, writable

pytestmark = [pytest.mark.every_run, pytest.mark.timeout(600)]  # the first one may have to build it


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("check",), id="a command of train"),
        pytest.param(("train", "check"), id="train itself"),
        pytest.param(("check", "--device", "cpu", "train.epochs=2"), id="with options"),
        pytest.param(("--device", "cpu", "check"), id="options first"),
        pytest.param(("bash", "-c", "train check"), id="a shell"),
        pytest.param(("/usr/local/bin/train", "check"), id="a path"),
    ],
)
def test_words_reach_train(image: Image, words: tuple[str, ...]) -> None:
    ended = image.run(*words)
    assert (ended.code, "quickstart" in ended.output) == (0, True), ended.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(("bash", "-c", "echo $0 $1", "one", "two words"), "one two words", id="bash -c"),
        pytest.param(("echo", "two  words"), "two  words", id="a builtin of shells"),
        pytest.param(("python", "-c", "import sys; print(sys.prefix)"), "/opt/venv", id="python -c"),
        pytest.param(("entrypoint", "show", "--json", "--device", "cpu"), '"launcher": "local"', id="entrypoint"),
    ],
)
def test_another_command_is_run_as_it_is(image: Image, words: tuple[str, ...], said: str) -> None:
    ended = image.run(*words)
    assert (ended.code, said in ended.output) == (0, True), ended.output


@pytest.mark.parametrize("word", ["chekc", "eval", "--no-such-option", "train.epochs=never"])
def test_a_word_that_is_nothing_is_named_with_a_fix(image: Image, word: str) -> None:
    ended = image.run(word)
    assert (ended.code, word.split("=")[0] in ended.output, "fix:" in ended.output) == (64, True, True), ended.output


def test_a_command_keeps_its_exit_code(image: Image) -> None:
    assert image.run("bash", "-c", "exit 75").code == 75


def test_a_folder_named_train_in_the_working_directory_is_not_imported(image: Image, tmp_path: Path) -> None:
    work = writable(tmp_path / "work")
    (work / "train").mkdir()
    (work / "train" / "__init__.py").write_text("raise SystemExit('imported from the working directory')")
    ended = image.run("train", "check", options=(mounted(work, "/workspace"),))
    assert (ended.code, "imported from" in ended.output) == (0, False), ended.output
