"""The user's own functions, found and called."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from jobs import trained

from entrypoint import ExitCode, Failure
from train import plugin
from train.cli.export import handle as handle_export
from train.run import resume

# (what the module holds, the name that is asked for, what the error says, what its fix says)
REFUSED = {
    "no-module": ("", "nothing_here:make", "there is no module nothing_here", "put nothing_here.py into that folder"),
    "like-one-of-python": ("", "nope:make", "there is no module nope", "put nope.py into that folder"),
    "nearly-that-module": ("", "users_modle:make", "there is no module users_modle", "write users_module instead"),
    "nearly-an-installed-one": (
        "",
        "nn_my:make",
        "there is no module nn_my",
        "put nn_my.py into that folder, or write",
    ),
    "no-such-part": ("", "users_module.part:make", "there is no module users_module.part", "package.module"),
    "no-attribute": ("def load(data): ...", "users_module:draw", "has no draw", "package.module:factory"),
    "nearly-that-attribute": ("def make(data): ...", "users_module:mak", "has no mak", "write make instead of mak"),
    "not-callable": ("make = 3", "users_module:make", "make is of type int", "make make a function"),
    "syntax": ("def make(:", "users_module:make", "line 1: SyntaxError", "mend it"),
    "division": ("x = 1\ny = x / 0", "users_module:make", "users_module.py, line 2: ZeroDivisionError", "mend it"),
    "import-inside": ("import not_installed_at_all", "users_module:make", "No module named 'not_inst", "mend it"),
    "leaves": ("import sys\nsys.exit(3)", "users_module:make", "users_module.py, line 2: SystemExit: 3", "mend it"),
    "name-inside": ("make = mak", "users_module:make", "line 1: NameError: name 'mak'", "mend it"),
    "no-words": ("raise RuntimeError", "users_module:make", "line 1: RuntimeError\n", "mend it"),
}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of users_module, whose folder is looked in."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    yield tmp_path / "users_module.py"
    sys.modules.pop("users_module", None)


def test_a_function_is_found_and_called(module: Path) -> None:
    module.write_text("def make(number, *, more): return number + more")
    assert (
        plugin.load_factory("users_module:make")(1, more=2)
        == plugin.call_factory("users_module:make", "data.name", 1, more=2)
        == 3
    )


@pytest.mark.parametrize(("source", "name", "what", "fix"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_loaded_is_refused(module: Path, source: str, name: str, what: str, fix: str) -> None:
    module.write_text(source)
    with pytest.raises(Failure) as caught:
        plugin.load_factory(name, "model.name")
    assert (caught.value.code, caught.value.what[:10]) == (ExitCode.USAGE, "model.name")
    assert what in str(caught.value)
    assert fix in caught.value.fix


def test_an_error_in_the_function_names_the_users_last_line(module: Path) -> None:
    module.write_text("import json\n\ndef make():\n    return json.loads('{')")
    with pytest.raises(Failure, match=r"data\.name users_module:make failed") as caught:
        plugin.call_factory("users_module:make", "data.name")
    assert f"{module}, line 4: JSONDecodeError" in str(caught.value.found)


def test_a_wrong_argument_is_said_without_a_line_of_ours(module: Path) -> None:
    module.write_text("def make(): ...")
    with pytest.raises(Failure) as caught:
        plugin.call_factory("users_module:make", "data.name", 1)
    assert str(caught.value.found).startswith("TypeError: make() takes 0 positional arguments")


@pytest.mark.parametrize("error", ["MemoryError()", "torch.OutOfMemoryError('CUDA')"])
def test_a_lack_of_memory_is_no_error_of_the_users(module: Path, error: str) -> None:
    module.write_text(f"import torch\ndef make(): raise {error}")
    with pytest.raises((MemoryError, RuntimeError)):
        plugin.call_factory("users_module:make", "data.name")


def test_a_failure_of_the_users_own_passes(module: Path) -> None:
    module.write_text("from entrypoint import *\ndef make(): raise Failure('no', fix='so', code=ExitCode.NO_INPUT)")
    with pytest.raises(Failure, match="no") as caught:
        plugin.call_factory("users_module:make", "data.name")
    assert caught.value.code == ExitCode.NO_INPUT


@pytest.mark.parametrize("config", ["sub/my.yaml", None], ids=["beside-the-config", "no-config"])
def test_the_folder_is_looked_in_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str | None) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    plugin.add_config_folder_to_path(config, "synthetic", "mine:make")
    assert sys.path[-1] == str(tmp_path / "sub" if config else tmp_path)


def test_without_a_factory_the_path_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = list(sys.path)
    plugin.add_config_folder_to_path(str(tmp_path / "my.yaml"), "synthetic", "resnet18")
    assert sys.path == before


OWN_CODE = {
    "own_net.py": "from torch import nn\nfrom own_parts.head import head\n"
    "def make(classes, shape): return nn.Sequential(nn.Flatten(), head(3 * 8 * 8, classes))\n",
    "own_parts/head.py": "from torch import nn\ndef head(inside, outside): return nn.Linear(inside, outside)\n",
    "own_data.py": "import torch\n"
    "def make(data):\n    import own_helper\n"
    "    return [(torch.full((3, 8, 8), own_helper.LEVEL * (i % 2)), i % 2) for i in range(40)], None\n",
    "own_helper.py": "LEVEL = 0.5\n",
    "own_steps.py": "import torch\nclass Steps(torch.optim.SGD): pass\n",
    "own_loss.py": "from torch.nn.functional import cross_entropy as mean\n",
    "own_report.py": "",
}
OWN_WORDS = (
    *("model.name=own_net:make", "model.args={}", "data.name=own_data:make", "optim.name=own_steps:Steps"),
    "optim.loss=own_loss:mean",
)


def forget_own_modules() -> None:
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]


@pytest.fixture
def own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a model, a data set, an optimizer and a loss of the user's own, and what they import."""
    for name, text in OWN_CODE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a change within a second would not be seen
    yield tmp_path
    forget_own_modules()


def notes_of(folder: Path, epochs: int) -> list[str]:
    forget_own_modules()
    return [note for note in trained(folder, *OWN_WORDS, f"train.epochs={epochs}").notes if "your own code" in note]


@pytest.mark.parametrize("name", [name for name in OWN_CODE if name != "own_report.py"])
def test_own_code_that_changed_since_the_checkpoint_is_named_when_the_run_resumes(own_code: Path, name: str) -> None:
    run = own_code / "run"
    assert notes_of(run, 1) == notes_of(run, 2) == []
    with (own_code / name).open("a") as file:
        file.write("# changed\n")
    (own_code / "own_report.py").write_text("which nothing imports")
    assert notes_of(run, 3) == [f"your own code has changed since the checkpoint was written: {own_code / name}"]
    assert notes_of(run, 4) == []


def test_own_code_that_changed_since_the_training_is_named_when_the_network_is_exported(
    own_code: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(own_code / "run", "model.name=own_net:make", "model.args={}")
    with (own_code / "own_net.py").open("a") as file:
        file.write("# changed\n")
    forget_own_modules()
    data = "{samples: 80, image_size: 8, classes: 2}"
    (own_code / "own.yaml").write_text(f"{{model: {{name: 'own_net:make', args: {{}}}}, data: {data}}}\n")
    words = [str(own_code / "run"), "--config", str(own_code / "own.yaml"), "--output", str(own_code / "model")]
    assert handle_export(words, {}) == 0
    assert f"note: your own code has changed since the checkpoint was written: {own_code / 'own_net.py'}" in (
        capsys.readouterr().err
    )


def test_the_started_program_is_no_own_code(own_code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that multiprocessing spawns load it as __mp_main__, and an environment may lie beside the user's code."""
    script = own_code / ".venv" / "bin" / "train"
    script.parent.mkdir(parents=True)
    script.write_text("")
    plugin.load_factory("own_net:make")
    for name in ("__main__", "__mp_main__"):
        module = ModuleType(name)
        module.__file__ = str(script)
        monkeypatch.setitem(sys.modules, name, module)
    assert {"__main__", "__mp_main__"}.isdisjoint(plugin.own_code())
    assert "own_net" in plugin.own_code()
    assert plugin.describe_changed_code({"__mp_main__": "of another start"}) == ()


def test_a_run_without_own_code_keeps_no_hash_of_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "_code_folders", set())  # those of other tests of this process
    trainer = trained(tmp_path / "run")
    assert "code" not in resume.checkpoint_metadata(trainer.config, trainer.runtime, {}, trainer.state)
