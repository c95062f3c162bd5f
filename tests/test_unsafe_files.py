"""Whatever lies in the place of a file that others may have written, no reader waits, stumbles or takes the memory."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import plant, reseal, saved
from label_tables import rows, write_table
from safetensors.torch import save_file

from bench import report
from entrypoint import Failure, exchange, files, hang
from entrypoint.run_errors import RunErrors, decide_requeue
from train import batch_size, file_lock
from train.checkpoint import format, manifest, store
from train.checkpoint.manifest import DamagedCheckpointError
from train.config.schema import DataConfig, ModelConfig, RunConfig
from train.data import decoded_cache, download, registry
from train.data.shards import packing
from train.data.sources.table import read_table
from train.evaluation import results
from train.files import is_plain_name
from train.inference import export
from train.logging.trackers import RunIds
from train.models import pretrained, weights
from train.report import saved_evaluation
from train.run import record

OLDER = Path(__file__).parent / "support" / "version-0.1.0"
pytestmark = pytest.mark.timeout(120)
Reader = Callable[[Path], object]


def of_table(path: Path) -> object:
    return read_table(replace(DataConfig(), name="table", root=str(path)))


def of_arrays(path: Path) -> object:
    return registry.open_splits(
        replace(DataConfig(), name=path.suffix[1:].replace("pt", "tensor"), root=str(path.parent))
    )


def of_pack(path: Path) -> object:
    return packing._prepare_output(path.parent, [], "")


def of_weights_beside(path: Path) -> object:
    save_file({"w": torch.zeros(1)}, path.with_name("model.safetensors"))
    return pretrained.read_record(path.with_name("model.safetensors"), "timm/resnet18")


# Each file that others may have written, and what reads it.
READERS: dict[str, Reader] = {
    "labels.csv": of_table,
    "train.npz": of_arrays,
    "train.pt": of_arrays,
    "pack.json": of_pack,
    "config.json": of_weights_beside,
    "model.json": of_weights_beside,
    "export/model.json": lambda path: export.load_exported(path.parent),
    "w.safetensors": lambda path: weights.read_weights(path),
    "cache.json": lambda path: decoded_cache.open_cache(path.with_suffix(".pixels"), 1, (2, 2, 3)),
    "data_batch_1": lambda path: download.is_intact(download.PublishedFile(path=path.name, md5="0"), path.parent),
    "x.lease.failed": lambda path: download._raise_recorded_failure(
        path.with_suffix(""), file_lock.WaitOutcome(token="a"), DataConfig()
    ),
    "run.json": lambda path: record.read_run(path.parent),
    "test.json": lambda path: results.read_final_score(path.parent),
    "errors/exit.json": lambda path: RunErrors.in_run(path.parents[1]).read_exit(),
    "errors/stopping.json": lambda path: RunErrors.in_run(path.parents[1]).describe_unfinished_save(),
    "errors/rank-0001.json": lambda path: RunErrors(path.parent).read(),
    "errors/node-a.json": lambda path: decide_requeue(1, [path]),
    "errors/hang-a.json": hang._read_statuses,
    "evaluation.json": saved_evaluation.read,
    "bench.json": report.read_bench,
    "run-ids.json": lambda path: RunIds(path).read(),
    ".lease.1": lambda path: file_lock.read_current_lock(path.with_suffix("")),
    "hosts/task-1.json": lambda path: exchange._task_host(files.read_json_object(path)),
    "micro-batches/key.json": lambda path: batch_size.MicroBatchCache(folder=path.parents[1], record={})._read("key"),
}
INSTEAD: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": Path.mkdir,
    "empty": Path.touch,
    "200,000 deep": lambda path: path.write_bytes(b"[" * 200_000),
    "500 deep": lambda path: path.write_bytes(b"[" * 500 + b"]" * 500),
    "5,000 digits": lambda path: path.write_bytes(b"9" * 5000),
    "a list": lambda path: path.write_bytes(b"[]"),
    "lists": lambda path: path.write_bytes(b"[[1], [{}]]"),
    "null": lambda path: path.write_bytes(b"null"),
    "zeros": lambda path: path.write_bytes(bytes(9999)),
}


@pytest.mark.parametrize("name", READERS)
def test_no_reader_waits_or_stumbles(tmp_path: Path, name: str) -> None:
    for put in INSTEAD.values():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        put(path)
        with suppress(Failure, DamagedCheckpointError):
            READERS[name](path)
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_a_file_is_read_to_its_end_and_no_further_than_the_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 3_000_000)
    assert len(files.read_regular_file(tmp_path / "a", 10**15)) == 3_000_000
    assert len(files.read_regular_file(tmp_path / "a", 3_000_000)) == 3_000_000
    with pytest.raises(OSError, match="longer than 2999999 bytes"):
        files.read_regular_file(tmp_path / "a", 2_999_999)


@pytest.mark.parametrize(
    "text", ["[" * 102 + "]" * 102, '{"a": 1, "b": 2, "a": 1}', '{"a": ' * 101 + "1" + "}" * 101, "NaN,"]
)
def test_json_that_is_ambiguous_or_too_deep_is_none(text: str) -> None:
    with pytest.raises(ValueError):
        files.parse_json(text)
    assert files.parse_json("[" * 100 + "1" + "]" * 100)


# Names that others wrote


NAMES = ("a", "a b", "ä", "a.tar", "-x", "\udce9", "x" * 255)
NO_NAMES = ("", ".", "..", ".a", "a/b", "/a", "../a", "a/", "a\0", "\ud800", "x" * 256, None, 5, ["a"], b"a")


def test_a_plain_name_leads_to_a_file_of_the_folder() -> None:
    assert [name for name in NAMES if not is_plain_name(name)] == []
    assert [name for name in NO_NAMES if is_plain_name(name)] == []


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "..", ".", "a/b", "a\0b", ".bashrc"])
def test_a_manifest_names_files_of_its_folder(tmp_path: Path, name: str) -> None:
    path = saved(tmp_path, 4)
    contents = manifest.from_bytes((path / "manifest.json").read_bytes())
    reseal(path, files={**contents.files, name: manifest.make_file_entry(b"")})
    with pytest.raises(Failure, match="plain file name") as caught:
        store.newest_checkpoint(tmp_path)
    assert caught.value.code == 77


def test_a_trackers_id_is_no_path(tmp_path: Path) -> None:
    (tmp_path / "ids.json").write_text(json.dumps({"wandb": "../../x", "mlflow": "0f1e", "aim": 5}))
    assert RunIds(tmp_path / "ids.json").read() == {"mlflow": "0f1e"}


# Numbers that others wrote


def test_a_manifest_that_claims_a_huge_file_takes_no_memory(tmp_path: Path) -> None:
    path = saved(tmp_path, 4)
    contents = manifest.from_bytes((path / "manifest.json").read_bytes())
    huge = replace(contents.files["state.json"], size=10**14)
    reseal(path, files={**contents.files, "state.json": huge})
    with pytest.raises(Failure, match=r"state\.json") as caught:
        store.read_state(store.open_checkpoint(path))
    assert caught.value.code == 65


@pytest.mark.parametrize("number", [10**17, 10**18 - 1, 10**30, 10**200])
def test_a_lock_with_a_long_number_is_taken_over_as_any_other(tmp_path: Path, number: int) -> None:
    path = tmp_path / ".lease"
    Path(f"{path}.{number}").touch()
    lock = file_lock.acquire_lock(path, file_lock.assume_stale(path))
    assert lock is not None
    assert lock.number == number + 1
    lock.release()
    assert list(tmp_path.iterdir()) == []


TASK = {"host": "a", "address": "10.0.0.1", "nonce": "n", "ports": "20000/21000", "master_addr": ""}
WRONG_TASK = [
    *({**TASK, "ports": ports} for ports in ("", "x", "1/", "99999", "9" * 400, "-1", "1,2", 20000, None, ["1"])),
    *({**TASK, name: value} for name in TASK for value in (None, 5, [], {})),
    *({key: value for key, value in TASK.items() if key != name} for name in TASK),
    *([], None, 5, "text", [TASK]),
]


def test_a_task_that_tells_no_host_is_not_believed() -> None:
    assert exchange._task_host(TASK) == exchange.TaskHost(**TASK)
    assert [values for values in WRONG_TASK if exchange._task_host(values) is not None] == []


@pytest.mark.parametrize("tasks", [5, None, [5], [None, []], {"a": 1}, [{**TASK, "ports": "x"}] * 2])
def test_a_list_of_tasks_that_is_none_is_waited_for_until_the_deadline(tmp_path: Path, tasks: Any) -> None:
    (tmp_path / "all.json").write_text(json.dumps({"tasks": tasks, "final": True}))
    me = exchange.TaskHost(**TASK)
    with pytest.raises(Failure, match="tasks did not tell their hosts in time") as caught:
        exchange._exchange_through_files(tmp_path, me, 1, 2, time.monotonic() - 1, lambda: None)
    assert caught.value.code == 69


RECORD = {"mean": [0.1], "std": [0.2], "crop_ratio": 0.9, "interpolation": "bicubic"}
WRONG_RECORDS: dict[str, dict[str, Any]] = {
    **{
        f"crop_ratio {value}": {"crop_ratio": value} for value in (0, -1, float("nan"), float("inf"), 2, 1e-9, None, [])
    },
    **{f"std {value}": {"std": [value]} for value in (0, -1, float("nan"), float("inf"), "1", None, 10**400, 1e9)},
    **{f"mean {value}": {"mean": [value]} for value in (-1, float("nan"), float("inf"), "0", None, 300)},
    "two means": {"mean": [0.1, 0.2]},
    "no std": {"std": []},
    "mean is a text": {"mean": "0.1"},
    "interpolation": {"interpolation": "magic"},
    "fit": {"fit": ["crop"]},
}


# timm's record has no fit; the others are not recorded there, or nothing that this program has.
UNUSED_OF_TIMM = ("fit", "crop_ratio 2", "crop_ratio None", "interpolation")


@pytest.mark.parametrize("name", WRONG_RECORDS)
def test_a_record_of_weights_with_impossible_values_is_refused(tmp_path: Path, name: str) -> None:
    """In the metadata of the weights, in timm's file beside them, and in ours."""
    values = {**RECORD, **WRONG_RECORDS[name]}
    of_file = {"name": "small_cnn.X", "preprocessing": values, "image_size": [32, 32], "classes": 2}
    tensors = {"w": torch.zeros(1)}
    save_file(tensors, tmp_path / "a.safetensors", {pretrained.RECORD_KEY: json.dumps(of_file)})
    save_file(tensors, tmp_path / "model.safetensors")
    timms = {**values, "crop_pct": values["crop_ratio"], "input_size": [3, 8, 8], "num_classes": 2}
    of_export = {"weights": {"file": "model.safetensors"}, "name": "x", "classes": ["a"]}
    of_export |= {"input": {"preprocessing": values, "size": [8, 8]}}
    beside = {
        "config.json": {"architecture": "resnet18", "pretrained_cfg": timms},
        "model.json": of_export,
    }
    for file, model in (("a", "small_cnn"), ("config.json", "timm/resnet18"), ("model.json", "small_cnn")):
        if file == "config.json" and name in UNUSED_OF_TIMM:
            continue
        for other in beside:
            (tmp_path / other).unlink(missing_ok=True)
        if file in beside:
            (tmp_path / file).write_text(json.dumps(beside[file]))
        path = tmp_path / ("a.safetensors" if file == "a" else "model.safetensors")
        with pytest.raises(Failure, match="the record of the weights is damaged") as caught:
            weights.fit_preprocessing(RunConfig(model=ModelConfig(name=model, weights=str(path))))
        assert caught.value.code == 65
        own = DataConfig(normalize={"mean": [0.1], "std": [0.2]}, crop_ratio=0.9, interpolation="bicubic", fit="crop")
        data = weights.fit_preprocessing(RunConfig(model=ModelConfig(name=model, weights=str(path)), data=own))
        assert replace(data, decode="auto") == own


@pytest.mark.parametrize("sides", [[0, 8], [8, -1], [8], [8, 8, 8], [10**9, 8], ["x", 8], None])
def test_a_record_of_weights_with_an_impossible_size_is_refused(tmp_path: Path, sides: Any) -> None:
    values = {"name": "x", "preprocessing": RECORD, "image_size": sides, "classes": 2}
    save_file({"w": torch.zeros(1)}, tmp_path / "a.safetensors", {pretrained.RECORD_KEY: json.dumps(values)})
    with pytest.raises(Failure, match="the record of the weights is damaged"):
        pretrained.read_record(tmp_path / "a.safetensors", "small_cnn")


def test_weights_of_a_run_that_records_an_impossible_crop_are_refused(tmp_path: Path) -> None:
    format.save_checkpoint(tmp_path, step=1, tensors={"model": {"w": torch.ones(1)}}, metadata={}, keep=1)
    plant(tmp_path / "step-00000001", "state.json", b'{"config": {"data": {"crop_ratio": 0}}}')
    with pytest.raises(Failure, match=r"data\.crop_ratio") as caught:
        weights.fit_preprocessing(RunConfig(model=ModelConfig(weights=str(tmp_path))))
    assert caught.value.code == 65


HUGE = (10**14, 2**63, 10**400)
WRONG_EXPORT: dict[str, tuple[Any, ...]] = {
    "weights.size": (2**63, 10**400, -5, "12", 1.5, None, True, float("nan")),
    "weights.sha256": (None, 5, []),
    "input.channels": (*HUGE, 0, -3, "3", 1.5, True, None),
    "input.size": ([], [8], [8, 0], [8, -8], [8, "8"], [10**9, 10**9], 8, None, {}, [8, 8, 8, 8], [8.0, 8]),
    "input.trained_size": ([8], [0, 8], [10**9, 10**9], "8"),
    "input.numbers": (None, "int8", 8, []),
    "classes": ("ab", [], {}, [1, 2], [None], 5, None, [["a"], ["b"]]),
    "input": (None, [], "x"),
    "weights": (None, [], "x"),
    "thresholds": ([0.5], ["x", "y"], [float("nan")] * 2, [2, 2], 5, "12"),
    "config.run.seed": (-1, 2**32, "1", 1.5, None, *HUGE),
    "target": ({"mean": 1}, 5, {"mean": "x", "std": 1}, *({"mean": 0, "std": std} for std in (0, -1, float("inf")))),
    "task": ("sorting", [], 5),
}


@pytest.mark.parametrize("field", WRONG_EXPORT)
def test_an_export_with_a_wrong_field_is_refused(tmp_path: Path, field: str) -> None:
    folder = Path(shutil.copytree(OLDER / "export", tmp_path / "export"))
    description = json.loads((folder / "model.json").read_text())
    export.load_exported(folder)
    for value in WRONG_EXPORT[field]:
        changed = json.loads(json.dumps(description))
        *above, name = field.split(".")
        part = changed
        for key in above:
            part = part[key]
        part[name] = value
        (folder / "model.json").write_text(json.dumps(changed))
        with pytest.raises(Failure) as caught:
            export.load_exported(folder)
        assert caught.value.code == 65, (value, caught.value)
        assert field.rpartition(".")[2] in str(caught.value), (value, caught.value)


def test_an_export_that_claims_huge_weights_takes_no_memory(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(OLDER / "export", tmp_path / "export"))
    description = json.loads((folder / "model.json").read_text())
    description["weights"]["size"] = 10**14
    (folder / "model.json").write_text(json.dumps(description))
    with pytest.raises(Failure, match="not 100000000000000") as caught:
        export.load_exported(folder)
    assert caught.value.code == 65


# Tables


def table(folder: Path, text: bytes) -> DataConfig:
    path = write_table(folder, rows("abab"), name="d.csv")
    path.write_bytes(text or path.read_bytes())
    return replace(DataConfig(), name="table", root=str(path))


def test_a_path_with_nul_in_a_large_folder_is_not_there(tmp_path: Path) -> None:
    lines = b"".join(b"a\0b/%03d.png,%d\n" % (number, number % 2) for number in range(99))
    with pytest.raises(Failure, match="not there") as caught:
        read_table(table(tmp_path, b"path,label\n" + lines))
    assert caught.value.code == 66
