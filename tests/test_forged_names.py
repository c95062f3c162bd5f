"""A run's folder or an export that somebody else wrote names code: none of it runs unless the user names it too."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints import plant, saved
from images import write_image
from worlds import CONTRACT

from entrypoint import Failure
from train import __main__ as front
from train import worker
from train.inference import checkpoints, evaluate
from train.inference import export as exported
from train.run.stop import StopSignals

OLDER = Path(__file__).parent / "support" / "version-0.1.0"
CODE = "from pathlib import Path\nPath('ran').touch()\ndef make(*args, **kwargs): raise SystemExit('it ran')\n"
CPU = {"ENTRYPOINT_DEVICE": "cpu", "TMPDIR": "."}


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's folder: beside a module of his own lies a run that another has written, with code in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    saved(tmp_path / "run" / "checkpoints", 4)
    for folder in (tmp_path, tmp_path / "run", tmp_path / "other"):
        folder.mkdir(exist_ok=True)
        (folder / "mine.py").write_text(CODE)
    (tmp_path / "run" / "hubconf.py").write_text(CODE)
    yield tmp_path
    for name in ("mine", "run", "run.mine"):
        sys.modules.pop(name, None)


def record(model: str, *, data: str = "synthetic", args: Any = None, **keys: Any) -> None:
    """Forge what the run in `run` tells, with the right hashes."""
    config = {"model": {"name": model, "args": args or {}}, "data": {"name": data, **keys}}
    plant(Path("run/checkpoints/step-00000004"), "state.json", json.dumps({"config": config}).encode())


def refused(*words: str, config: str | None = None, code: int = 77) -> Failure:
    with pytest.raises(Failure) as caught:
        checkpoints.load_config(checkpoints.choose_checkpoint("run"), config, words)
    assert caught.value.code == code, caught.value
    assert not Path("ran").exists()
    return caught.value


NAMES = ("torch.hub:load", "os:system", "builtins:exec", "torchvision.models:resnet18", "mine:make", "run.mine:make")


@pytest.mark.parametrize("name", NAMES)
def test_a_model_that_only_the_run_names_is_refused(workdir: Path, name: str) -> None:
    record(name, args={"repo_or_dir": "run"})
    assert f'model.name: {name}, model.args: {{"repo_or_dir": "run"}}' in str(refused())


@pytest.mark.parametrize("name", NAMES)
def test_data_that_only_the_run_names_is_refused(workdir: Path, name: str) -> None:
    record("small_cnn", data=name)
    assert f"data.name: {name}" in str(refused("data.root=elsewhere"))


def test_naming_one_of_two_is_not_naming_the_other(workdir: Path) -> None:
    record("mine:make", data="mine:make")
    fix = refused("model.name=mine:make").fix
    assert f"if you know what is in {workdir / 'mine.py'}, add model.name=mine:make data.name=mine:make" in fix


# A name that no fix may offer, since a user who types what he reads would run another's code: what of it comes first.
NEVER = {
    "torch": "torch.hub:load",
    "the standard library": "os:system",
    "a built-in module": "builtins:exec",
    "an installed package": "yaml:unsafe_load",
    "this program": "train.plugin:call",
    "what was started": "__main__:main",
    "a module that a file of the same name cannot hide": "json:loads",
    "nor an installed one": "safetensors:safe_open",
    "code in the run": "run.mine:make",
    "code in a folder beside the run": "other.mine:make",
    "code through a link": "linked:make",
    "code through a linked folder": "package.mine:make",
    "code through a folder in the user's own package": "own.inner.mine:make",
    "a folder of packages in the user's": "inside:make",
    "what the user's module imports": "borrowed:load",
    "what his module calls so": "borrowed:make",
    "nothing at all": "nowhere:make",
}


@pytest.mark.parametrize("name", NEVER.values(), ids=NEVER)
def test_what_is_no_module_of_the_users_folder_only_his_own_config_can_name(workdir: Path, name: str) -> None:
    for module in ("json", "safetensors", "__main__"):
        (workdir / f"{module}.py").write_text(CODE)
    (workdir / "run" / "__init__.py").touch()
    (workdir / "linked.py").symlink_to("run/mine.py")
    (workdir / "package").symlink_to("run")
    (workdir / "borrowed.py").write_text(f"{CODE.replace('make', 'other')}from torch.hub import load\nmake = load\n")
    (workdir / "own").mkdir()
    (workdir / "own" / "__init__.py").touch()
    (workdir / "own" / "inner").symlink_to(workdir / "run")
    (workdir / "venv").mkdir()
    (workdir / "venv" / "inside.py").write_text(CODE)
    sys.path.append(str(workdir / "venv"))
    record(name)
    for words in ([], [f"model.name={name}"]):
        assert refused(*words).fix.endswith("--config FILE, in which you chose this code")


def test_who_works_in_the_runs_own_folder_does_not_run_its_modules(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record("mine:make")
    monkeypatch.chdir("run")
    with pytest.raises(Failure) as caught:
        checkpoints.load_config(checkpoints.choose_checkpoint("."), None, ["model.name=mine:make"])
    assert (caught.value.code, "add model.name" in caught.value.fix) == (77, False)


@pytest.mark.parametrize("link", [False, True])
def test_a_config_out_of_the_run_is_not_the_users(workdir: Path, link: bool) -> None:
    record("mine:make")
    Path("run/config.yaml").write_text("model: {name: mine:make}")
    Path("cfg.yaml").symlink_to("run/config.yaml")
    assert "lies in" in refused(config="cfg.yaml" if link else "run/config.yaml").what


@pytest.mark.parametrize(
    "name",
    [
        *("mine", "mine.make", "mine:make.inner", "mine:make:x", ".mine:make", "..mine:make", "a..b:make"),
        *("run/mine:make", "mine:make()", "mine:__import__('os')", " mine:make", "mine:make\n", "http://host/m:make"),
    ],
)
def test_what_is_not_written_as_a_factory_is_no_model(workdir: Path, name: str) -> None:
    record(name)
    refused(f"model.name={name}", code=64)


def typed(workdir: Path) -> tuple[str | None, list[str]]:
    return None, ["model.name=mine:make", "data.name=mine:make"]


def in_a_config(workdir: Path) -> tuple[str | None, list[str]]:
    Path("cfg.yaml").write_text("model: {name: mine:make}\ndata: {name: mine:make}")
    return "cfg.yaml", []


@pytest.mark.parametrize("how", [typed, in_a_config])
def test_a_module_of_the_users_folder_counts_once_he_names_it(
    workdir: Path, how: Callable[[Path], tuple[str | None, list[str]]]
) -> None:
    record("mine:make", data="mine:make")
    config, _ = checkpoints.load_config(checkpoints.choose_checkpoint("run"), *how(workdir))
    assert (config.model.name, config.data.name) == ("mine:make", "mine:make")


def test_a_package_of_the_users_folder_counts_too(workdir: Path) -> None:
    (workdir / "nets").mkdir()
    (workdir / "nets" / "__init__.py").touch()
    (workdir / "nets" / "small.py").write_text("class make: ...")
    record("nets.small:make")
    config, _ = checkpoints.load_config(checkpoints.choose_checkpoint("run"), None, ["model.name=nets.small:make"])
    assert config.model.name == "nets.small:make"


def test_an_installed_package_counts_where_his_config_names_it_with_its_arguments(workdir: Path) -> None:
    Path("cfg.yaml").write_text("model: {name: torchvision.models:resnet18, args: {num_classes: 2}}")
    record("torchvision.models:resnet18", args={"num_classes": 2})
    assert checkpoints.load_config(checkpoints.choose_checkpoint("run"), "cfg.yaml", [])[0].model.args == {
        "num_classes": 2
    }
    record("torchvision.models:resnet18", args={"num_classes": 2, "weights": "DEFAULT"})
    assert "model.args" in refused(config="cfg.yaml", code=64).what


def test_each_command_refuses_before_anything_is_imported_or_written(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record("torch.hub:load", args={"repo_or_dir": str(workdir / "run"), "source": "local", "model": "make"})
    write_image(workdir / "a.png")
    for line in (["eval", "run"], ["predict", "run", "a.png"], ["export", "run", "--output", "model"]):
        assert (front.run_command(line, CPU), capsys.readouterr().err.count("ERROR[77]")) == (77, 1)
    assert not {"ran", "model"} & {path.name for path in workdir.iterdir()}
    assert not list(workdir.glob("train-*"))


def test_no_command_imports_the_optimizer_that_a_run_names(workdir: Path) -> None:
    run = Path(shutil.copytree(OLDER / "run", workdir / "forged"))
    for checkpoint in (run / "checkpoints").iterdir():
        state = json.loads((checkpoint / "state.json").read_text())
        state["config"]["optim"]["name"] = "mine:make"
        plant(checkpoint, "state.json", json.dumps(state).encode())
    (run / "mine.py").write_text(CODE)
    write_image(workdir / "a.png", 9)
    for line in (["eval", "forged"], ["predict", "forged", "a.png"], ["export", "forged", "--output", "model"]):
        assert front.run_command(line, CPU) == 0, line
    assert not (workdir / "ran").exists()
    assert "mine" not in sys.modules


def test_a_rank_that_measures_looks_for_no_optimizer_in_the_folder(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path("run/checkpoints/step-00000004")
    plant(run, "state.json", json.dumps({"config": {"optim": {"name": "mine:make"}}}).encode())
    monkeypatch.setattr(evaluate, "evaluate_on_rank", lambda *arguments, **options: 0)
    before = list(sys.path)
    assert worker.run(["--evaluate", str(run), "--scratch", "."], dict(CONTRACT), StopSignals()) == 0
    assert sys.path == before


def test_a_rank_that_measures_refuses_too(workdir: Path) -> None:
    record("mine:make")
    words = ["--evaluate", "run/checkpoints/step-00000004", "--scratch", "."]
    with pytest.raises(Failure) as caught:
        worker.load_config(worker.build_parser().parse_args(words))
    assert caught.value.code == 77


def export(name: str, **args: Any) -> None:
    """What somebody hands on as an export: its name decides before anything else is read."""
    Path("model").mkdir()
    Path("model/mine.py").write_text(CODE)
    Path("model", exported.DESCRIPTION_FILE).write_text(
        json.dumps({"format": exported.FORMAT_VERSION, "name": name, "args": args})
    )


@pytest.mark.parametrize("name", ["torch.hub:load", "mine:make", "model.mine:make"])
def test_an_export_runs_no_code_that_it_names(workdir: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    export(name, repo_or_dir="run", source="local", model="make")
    write_image(workdir / "a.png")
    with pytest.raises(Failure) as caught:
        exported.load_exported("model")
    assert caught.value.code == 77
    assert front.run_command(["predict", "model", "a.png"], CPU) == 77
    own = name == "mine:make"  # the same name in the user's own folder: that is imported, once he names it
    assert not Path("ran").exists()
    assert front.run_command(["predict", "model", "a.png", f"model.name={name}"], CPU) == (65 if own else 77)
    assert Path("ran").exists() == own


@pytest.mark.parametrize(
    "words",
    [
        ["model.name=other:make"],
        ["model.name=mine:make", "model.args.source=x"],
        ["data.root=x"],
        ["--config", "c.yaml"],
    ],
)
def test_an_export_is_what_it_is(workdir: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    export("mine:make", source="local")
    Path("c.yaml").write_text("model: {name: mine:make}")
    write_image(workdir / "a.png")
    assert front.run_command(["predict", "model", "a.png", *words], CPU) == 64
    assert "an exported model has no settings" in capsys.readouterr().err
    assert not Path("ran").exists()


def test_a_run_fetches_nothing_from_where_it_says(workdir: Path) -> None:
    record("small_cnn", data="mnist", download=True, mirror="http://127.0.0.1:9/x")
    data = checkpoints.load_config(checkpoints.choose_checkpoint("run"), None, [])[0].data
    assert (data.download, data.mirror) == (False, None)


@pytest.mark.parametrize("how", ["typed", "section", "config"])
def test_what_the_user_says_of_fetching_counts(workdir: Path, how: str) -> None:
    record("small_cnn", data="mnist", download=False, mirror="http://127.0.0.1:9/x")
    Path("cfg.yaml").write_text("data: {name: mnist, download: true, mirror: http://mine/}")
    words = {
        "typed": ["data.download=true", "data.mirror=http://mine/"],
        "section": ["data={name: mnist, download: true, mirror: http://mine/}"],
        "config": [],
    }[how]
    data = checkpoints.load_config(
        checkpoints.choose_checkpoint("run"), "cfg.yaml" if how == "config" else None, words
    )[0].data
    assert (data.download, data.mirror) == (True, "http://mine/")
