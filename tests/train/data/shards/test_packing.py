"""`train data pack` writes what was planned, also beside another process, or commits nothing."""

from __future__ import annotations

import errno
import os
import random
import re
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from processes import TIMEOUT_S, alive, wait_until
from tars import data_of, png, write_tar

from entrypoint import Failure, file_writer
from train import files
from train.config.schema import DataConfig
from train.data import registry, statistics
from train.data.class_folders import IMAGE_SUFFIXES
from train.data.shards import index as shard_index
from train.data.shards import packing
from train.data.shards.packing import Scaling
from train.data.shards.source import ShardSource
from train.data.splits import DataSplits, SampleSource

PATIENTS = 10


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    """Four scans of each of ten patients, whose number is the value of all pixels."""
    for number in range(4 * PATIENTS):
        path = tmp_path / "scans" / f"class-{number % 2}" / f"patient-{number // 4}_{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(number // 4, side=16))
    return tmp_path / "scans"


def folder_of(scans: Path, **values: object) -> DataConfig:
    return replace(DataConfig(), name="folder", root=str(scans), image_size=8, **values)  # type: ignore[arg-type]


def table_of(scans: Path, columns: str, rows: Sequence[str], **values: object) -> DataConfig:
    table = scans.parent / "table.csv"
    table.write_text("\n".join([columns, *rows]) + "\n")
    return replace(DataConfig(), name="table", root=str(table), image_size=8, **values)  # type: ignore[arg-type]


def pack(data: DataConfig, output: Path, **options: object) -> tuple[shard_index.ShardIndex, str]:
    lines: list[str] = []
    options = {"scaling": None, "shard_bytes": 2000} | options
    index = packing.pack_images(data, output, say=lines.append, **options)  # type: ignore[arg-type]
    return index, "\n".join(lines)


def assert_refused(data: DataConfig, output: Path, code: int, *words: str) -> None:
    with pytest.raises(Failure) as caught:
        pack(data, output)
    assert (caught.value.code, [word for word in words if word not in str(caught.value)]) == (code, []), caught.value


def patients(splits: DataSplits) -> tuple[set[int], set[int]]:
    """The patients of the training and of the validation split."""
    training, validation = (
        set(source.read(np.arange(len(source.labels)))[:, 0, 0, 0].tolist())
        for source in (splits.training, splits.validation)
    )
    return training, validation


def test_images_without_the_ending_of_an_image_are_all_packed(scans: Path, tmp_path: Path) -> None:
    paths = sorted(scans.rglob("*.png"))
    for path in paths[::2]:
        path.rename(path.with_suffix(".dcm2"))
    for path in paths[1::4]:
        path.rename(path.with_suffix(""))
    rows = [f"{path.relative_to(tmp_path)},{path.parent.name}" for path in sorted(scans.rglob("patient*"))]
    index, _ = pack(table_of(scans, "path,label", rows, val_fraction=0.0), tmp_path / "out")
    assert (len(index.entries), index.entries["label"].tolist().count(0)) == (40, 20)


def test_images_of_every_ending_that_is_read_are_packed(scans: Path, tmp_path: Path) -> None:
    for ending in IMAGE_SUFFIXES:
        (scans / "class-0" / f"more{ending}").write_bytes(png(1, side=16))
        (scans / "class-1" / f"more{ending.upper()}").write_bytes(png(1, side=16))
    index, printed = pack(folder_of(scans, val_fraction=0.0), tmp_path / "out")
    assert (len(index.entries), "not read" in printed) == (40 + 2 * len(IMAGE_SUFFIXES), False)


def test_files_that_are_not_packed_are_said(scans: Path, tmp_path: Path) -> None:
    (scans / "class-0" / "notes.docx").touch()
    assert "note: 1 file is not read: .docx (1)" in pack(folder_of(scans), tmp_path / "out")[1]


def test_a_shard_that_lost_an_image_gets_no_index(scans: Path, tmp_path: Path) -> None:
    output, data = tmp_path / "out", folder_of(scans, val_fraction=0.0)
    pack(data, output)
    (output / "index.json").unlink()
    write_tar(output / "train-00000.tar", {"a.png": png(1), "a.cls": b"0"})
    assert_refused(data, output, 65, "does not hold the images that were packed into it", "train-00000.tar: 1 of")
    assert not (output / "index.json").exists()


@pytest.mark.parametrize("name", ["a\nb", "a\r", "\n", "\ufeffa", " "])
def test_a_class_that_is_no_line_is_refused_before_anything_is_written(scans: Path, tmp_path: Path, name: str) -> None:
    (scans / "class-0").rename(scans / name)
    assert_refused(folder_of(scans), tmp_path / "out", 65, "the name of a class", repr(name))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("inside", [".", "class-0", "shards", "class-0/x/y", "../link/shards"])
def test_no_shards_are_written_into_the_folder_that_is_packed(scans: Path, tmp_path: Path, inside: str) -> None:
    (tmp_path / "link").symlink_to(scans)
    before = sorted(scans.rglob("*"))
    assert_refused(folder_of(scans), scans / inside, 64, "--output lies in the folder that is packed")
    assert sorted(scans.rglob("*")) == before


def test_shards_beside_a_table_of_images_are_written(scans: Path, tmp_path: Path) -> None:
    rows = [f"{path.relative_to(tmp_path)},{path.parent.name}" for path in sorted(scans.rglob("*.png"))]
    assert len(pack(table_of(scans, "path,label", rows), scans / "out")[0].entries) == 40


def replaced(path: Path) -> None:
    path.write_bytes(png(77, side=16))


def touched(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def longer(path: Path) -> None:
    status = path.stat()
    path.write_bytes(path.read_bytes() + b"x")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("change", [replaced, touched, longer])
def test_shards_of_an_image_that_was_replaced_since_are_refused(
    scans: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    pack(folder_of(scans), tmp_path / "out")
    change(scans / "class-0" / "patient-0_0.png")
    assert_refused(folder_of(scans), tmp_path / "out", 73, "is of other images", "--output DIR")


def test_a_broken_image_is_packed_as_it_is_where_a_training_would_skip_it(scans: Path, tmp_path: Path) -> None:
    (scans / "class-0" / "patient-0_0.png").write_bytes(b"broken")
    scaling = Scaling(size=16, quality=90)
    with pytest.raises(Failure, match=r"data\.max_bad_images=1") as caught:
        pack(folder_of(scans), tmp_path / "out", scaling=scaling)
    assert caught.value.code == 65
    index, printed = pack(folder_of(scans, max_bad_images=1), tmp_path / "more", scaling=scaling)
    assert (len(index.entries), "patient-0_0.png: no image that Pillow knows" in printed) == (40, True)
    (scans / "class-0" / "patient-0_2.png").write_bytes(b"broken")
    with pytest.raises(Failure, match="cannot be read"):
        pack(folder_of(scans, max_bad_images=1), tmp_path / "most", scaling=scaling)


def grouped_folder(scans: Path, **values: object) -> DataConfig:
    return folder_of(scans, group=r"patient-\d+", **values)


def grouped_table(scans: Path, **values: object) -> DataConfig:
    paths = sorted(scans.rglob("*.png"), reverse=True)
    rows = [f"{path.relative_to(scans.parent)},{path.parent.name},{path.name.split('_')[0]}" for path in paths]
    return table_of(scans, "path,label,group", rows, **values)


@pytest.mark.parametrize("grouped", [grouped_folder, grouped_table])
@pytest.mark.parametrize(
    "split", [{"val_fraction": 0.3}, {"fold": "1/5"}, {"fold": "4/5"}, {"val_fraction": 0.2, "test_fraction": 0.2}]
)
def test_shards_keep_a_group_in_one_split_and_the_same_groups_as_the_images(
    scans: Path, tmp_path: Path, grouped: Callable[..., DataConfig], split: dict[str, object]
) -> None:
    pack(grouped(scans, val_fraction=0.0), tmp_path / "out")
    data = data_of(tmp_path / "out", **split)
    of_shards = registry.open_splits(data)
    training, validation = patients(of_shards)
    assert (training & validation, bool(validation)) == (set(), True)
    assert (training, validation) == patients(registry.open_splits(grouped(scans, **split)))
    assert "groups" in of_shards.notes[0]


def test_more_folds_than_groups_are_refused_of_shards_too(scans: Path, tmp_path: Path) -> None:
    pack(grouped_folder(scans, val_fraction=0.0), tmp_path / "out")
    with pytest.raises(Failure, match="fewer groups than the 11 folds"):
        registry.open_splits(data_of(tmp_path / "out", fold="1/11"))


@pytest.mark.parametrize(("task", "labels"), [("regression", ["1.5", "2.25"]), ("multi_label", ["a;b", ""])])
def test_labels_of_other_tasks_keep_their_groups(scans: Path, tmp_path: Path, task: str, labels: list[str]) -> None:
    rows = [
        f"{path.relative_to(tmp_path)},{labels[number % 2]},{number // 8}"
        for number, path in enumerate(sorted(scans.rglob("*.png")))
    ]
    index, _ = pack(table_of(scans, "path,label,group", rows, task=task, val_fraction=0.0), tmp_path / "out")
    assert index.groups is not None
    assert (index.labels.task, np.bincount(index.groups).tolist()) == (task, [8] * 5)
    splits = registry.open_splits(data_of(tmp_path / "out", val_fraction=0.2))
    assert (len(splits.validation.labels), splits.task) == (8, task)


@pytest.mark.parametrize("array", [np.arange(7), np.full(40, -1), np.full(40, 40), np.zeros(40, np.int32)])
def test_groups_that_somebody_else_wrote_are_checked(scans: Path, tmp_path: Path, array: np.ndarray) -> None:
    pack(grouped_folder(scans, val_fraction=0.0), tmp_path / "out")
    np.save(tmp_path / "out" / "groups.npy", array)
    with pytest.raises(Failure, match=r"groups\.npy") as caught:
        registry.open_splits(data_of(tmp_path / "out"))
    assert caught.value.code == 65


def digests(data: DataConfig) -> dict[str, str]:
    fingerprint: dict[str, str] = statistics.data_fingerprint(registry.open_splits(data), data.root)["digests"]
    return fingerprint


def test_the_same_images_in_other_shard_files_are_another_order(scans: Path, tmp_path: Path) -> None:
    data = folder_of(scans, val_fraction=0.0)
    for name, size in {"few": 10**9, "many": 1000}.items():
        pack(data, tmp_path / name, shard_bytes=size)
    few, many = (digests(data_of(tmp_path / name, val_fraction=0.0)) for name in ("few", "many"))
    assert {key for key in few if few[key] != many[key]} == {"order"}


def test_shards_at_another_place_are_the_same(scans: Path, tmp_path: Path) -> None:
    pack(folder_of(scans), tmp_path / "out")
    before = digests(data_of(tmp_path / "out"))
    assert digests(data_of((tmp_path / "out").rename(tmp_path / "moved"))) == before


def weighted(scans: Path, weights: Sequence[object] | None) -> DataConfig:
    rows = [f"{path.relative_to(scans.parent)},{path.parent.name}" for path in sorted(scans.rglob("*.png"))]
    if weights is None:
        return table_of(scans, "path,label", rows)
    return table_of(
        scans, "path,label,weight", [f"{row},{weights[number % len(weights)]}" for number, row in enumerate(rows)]
    )


@pytest.mark.parametrize("others", [[1, 3], [2, 1], None])
def test_other_weights_of_a_table_are_other_data(scans: Path, others: Sequence[object] | None) -> None:
    before = digests(weighted(scans, [1, 2]))
    after = digests(weighted(scans, others))
    assert {key for key in before if before[key] != after[key]} == {"weights"}


def test_weights_that_count_the_same_are_the_same_data(scans: Path) -> None:
    assert digests(weighted(scans, [1, 2])) == digests(weighted(scans, [2, 4]))


def test_the_place_of_a_validation_shard_is_not_the_order_of_training(scans: Path, tmp_path: Path) -> None:
    pack(folder_of(scans, val_fraction=0.0), tmp_path / "out")
    before = digests(data_of(tmp_path / "out", val_fraction=0.0))
    write_tar(tmp_path / "out" / "val-0.tar", {"0.cls": b"1", "0.png": png(1)})
    shard_index.write_index(tmp_path / "out", processes=1)
    after = digests(data_of(tmp_path / "out", val_fraction=0.0))
    assert {key for key in before if before[key] != after[key]} == {"held_out"}
    assert isinstance(registry.open_splits(data_of(tmp_path / "out")).training, ShardSource)


def first_values(source: SampleSource) -> list[int]:
    """The first value of each image."""
    return source.read(np.arange(len(source.labels)))[:, 0, 0, 0].tolist()


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Class folders with 30 images each, of which all pixels have one value."""
    for number, name in enumerate(("cat", "dog")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number_in_class in range(30):
            (tmp_path / "photos" / name / f"{number_in_class}.v1.png").write_bytes(
                png(100 * number + number_in_class, side=16)
            )
    return tmp_path / "photos"


def pack_pets(
    pets: Path, output: Path, *, scaling: Scaling | None = None, shard_bytes: int = 1000
) -> shard_index.ShardIndex:
    data = replace(DataConfig(), name="folder", root=str(pets), image_size=16)
    return packing.pack_images(data, output, scaling=scaling, say=lambda line: None, shard_bytes=shard_bytes)


def test_packed_images_have_the_pixels_classes_and_splits_of_the_folder(pets: Path, tmp_path: Path) -> None:
    pack_pets(pets, tmp_path / "out")
    of_folder = registry.open_splits(replace(data_of(pets), name="folder", image_size=16))
    of_shards = registry.open_splits(replace(data_of(tmp_path / "out"), image_size=16))
    assert of_shards.classes == of_folder.classes == ("cat", "dog")
    for original, from_shards in (
        (of_folder.training, of_shards.training),
        (of_folder.validation, of_shards.validation),
    ):
        expected, read = (
            sorted(zip(first_values(each), each.labels.tolist(), strict=True)) for each in (original, from_shards)
        )
        assert expected == read


def test_shards_hold_all_classes(pets: Path, tmp_path: Path) -> None:
    index = pack_pets(pets, tmp_path / "out", shard_bytes=3000)
    assert len(index.shards) > 2
    ends = np.cumsum([shard.images for shard in index.shards])
    assert all(len(set(part)) == 2 for part in np.split(index.entries["label"], ends)[: len(index.shards) - 1])


def test_packing_goes_on_where_it_was_stopped(pets: Path, tmp_path: Path) -> None:
    expected = pack_pets(pets, tmp_path / "whole").entries.tobytes()
    pack_pets(pets, tmp_path / "out")
    first, second, *_ = sorted((tmp_path / "out").glob("train-*.tar"))
    kept = first.stat().st_mtime_ns
    second.unlink()
    (tmp_path / "out" / "index.json").unlink()
    assert pack_pets(pets, tmp_path / "out").entries.tobytes() == expected
    assert first.stat().st_mtime_ns == kept


def test_an_image_that_is_gone_leaves_no_half_shard(
    pets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = packing._read_image

    def fail(path: str, sample: int, scaling: Scaling | None) -> tuple[str, bytes]:
        if path.endswith("/7.v1.png"):
            Path(path).unlink(missing_ok=True)
        return read(path, sample, scaling)

    monkeypatch.setattr(packing, "_read_image", fail)
    monkeypatch.setattr("train.data.process_pool.num_usable_cores", lambda: 1)
    with pytest.raises(Failure, match="it is gone"):
        pack_pets(pets, tmp_path / "out")
    assert not list((tmp_path / "out").glob(".tmp-*"))


def test_a_folder_with_other_files_is_refused(pets: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").touch()
    with pytest.raises(Failure, match=r"mine\.txt") as caught:
        pack_pets(pets, tmp_path / "out")
    assert caught.value.code == 73


def test_shards_of_other_options_are_not_mixed(pets: Path, tmp_path: Path) -> None:
    pack_pets(pets, tmp_path / "out")
    with pytest.raises(Failure, match="of other options"):
        pack_pets(pets, tmp_path / "out", scaling=Scaling(size=8, quality=90))


def test_larger_images_are_scaled_to_the_shorter_side(pets: Path, tmp_path: Path) -> None:
    index = pack_pets(pets, tmp_path / "out", scaling=Scaling(size=12, quality=95))
    with tarfile.open(tmp_path / "out" / index.shards[0].name) as archive:
        member = archive.getmembers()[0]
        extracted = archive.extractfile(member)
        assert extracted is not None
        with Image.open(extracted) as image:
            assert (image.size, image.format, member.name.endswith(".jpg")) == ((12, 12), "JPEG", True)


def test_a_full_disk_keeps_the_shards_that_are_there_and_says_how_to_go_on(
    pets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = packing._add

    def fail(archive: tarfile.TarFile, name: str, content: bytes) -> None:
        if name.startswith("00000025"):
            raise OSError(errno.ENOSPC, "No space left on device")
        add(archive, name, content)

    monkeypatch.setattr("train.data.process_pool.num_usable_cores", lambda: 1)
    monkeypatch.setattr(packing, "_add", fail)
    with pytest.raises(Failure, match="cannot write") as caught:
        pack_pets(pets, tmp_path / "out")
    assert (caught.value.code, "--output DIR" in caught.value.fix) == (74, True)
    assert len(list((tmp_path / "out").glob("train-*.tar"))) >= 2
    assert not list((tmp_path / "out").glob(".tmp-*"))


def test_class_names_are_kept_as_the_folders_have_them(tmp_path: Path) -> None:
    names = ["Bäume", " spaced", os.fsdecode(b"caf\xe9"), "line\u2028separator"]
    for name in names:
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(5):
            (tmp_path / "photos" / name / f"{number}.png").write_bytes(png(number, side=16))
    pack_pets(tmp_path / "photos", tmp_path / "out")
    assert registry.open_splits(data_of(tmp_path / "out")).classes == tuple(sorted(names))


NUM_PHOTOS = 240
PACK = """
import os, sys
from dataclasses import replace
from pathlib import Path
from entrypoint import Failure
from train.config.schema import DataConfig
from train.data.shards import packing
data = replace(DataConfig(), name="folder", root=sys.argv[1], image_size=16, val_fraction=0.0)
try:
    index = packing.pack_images(data, Path(sys.argv[2]), scaling=None, say=print, shard_bytes=2000)
except Failure as failure:
    print(failure, file=sys.stderr)
    sys.exit(int(failure.code))
print("images", len(index.entries))
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number in range(NUM_PHOTOS):
        path = folder / f"class-{number % 2}" / f"{number:03d}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(png(number % 250, side=16))
    return folder


@pytest.fixture
def start(photos: Path, tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts `train data pack` of the photos into one folder, in a session of its own."""
    started: list[subprocess.Popen[str]] = []

    def start_pack() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PACK, str(photos), str(tmp_path / "out")]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, start_new_session=True, **pipes))  # type: ignore[call-overload]
        return started[-1]

    yield start_pack
    for process in started:
        process.kill()
        process.communicate(timeout=TIMEOUT_S)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, out + err


def has_shards(folder: Path, number: int) -> Callable[[], bool]:
    return lambda: len(list(folder.glob("train-*.tar"))) >= number


def hidden_files(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_a_second_pack_into_the_folder_names_the_first(
    start: Callable[[], subprocess.Popen[str]], tmp_path: Path
) -> None:
    first = start()
    wait_until(has_shards(tmp_path / "out", 1), "the first has begun")
    os.kill(first.pid, signal.SIGSTOP)
    code, text = ended(start())
    os.kill(first.pid, signal.SIGCONT)
    assert (code, f"process {first.pid} on " in text) == (73, True), text
    assert ended(first)[1].endswith(f"images {NUM_PHOTOS}\n")


@pytest.mark.parametrize(
    ("seed", "killed"),
    [
        pytest.param(seed, killed, marks=pytest.mark.slow if seed or killed else ())
        for seed in range(8)
        for killed in (0, 1)
    ],
)
def test_two_packs_of_which_one_is_killed_lose_no_image(
    start: Callable[[], subprocess.Popen[str]], tmp_path: Path, killed: int, seed: int
) -> None:
    pair = [start(), start()]
    shards = random.Random(2 * seed + killed).randrange(1, 6)
    wait_until(lambda: has_shards(tmp_path / "out", shards)() or pair[killed].poll() is not None, "a pack has begun")
    os.kill(pair[killed].pid, signal.SIGKILL)
    code, text = ended(pair[1 - killed])
    complete = code == 0 and text.endswith(f"images {NUM_PHOTOS}\n")
    assert complete or (code == 73 and re.search(r"process \d+ on ", text)), text
    code, text = ended(start())
    assert (code, text.rpartition("\n")[0].rpartition("\n")[2]) == (0, f"images {NUM_PHOTOS}"), text
    assert hidden_files(tmp_path / "out") == []


def test_a_killed_pack_leaves_no_process(start: Callable[[], subprocess.Popen[str]], tmp_path: Path) -> None:
    start_pack = start()
    wait_until(has_shards(tmp_path / "out", 1), "it has begun")
    children = [int(pid) for pid in Path(f"/proc/{start_pack.pid}/task/{start_pack.pid}/children").read_text().split()]
    start_pack.kill()
    wait_until(lambda: not any(map(alive, children)), "its processes have ended")


def test_the_probe_of_another_pack_that_begins_is_no_foreign_file(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    file_writer.temporary_path(tmp_path / "out" / files.PROBE_NAME).write_bytes(b"\n")
    data = DataConfig(name="folder", root=str(photos), val_fraction=0.0)
    assert len(packing.pack_images(data, tmp_path / "out", scaling=None, say=lambda _: None).entries) == NUM_PHOTOS
