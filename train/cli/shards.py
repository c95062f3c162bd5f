"""`train data pack` makes tar shards of image files, and `train data index` lists what lies in shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from entrypoint import ExitCode, Failure, join_lines, list_some, print_message, shell_command
from train import files
from train.config import load
from train.config.schema import DataConfig, RunConfig
from train.data import registry
from train.tasks import TASKS

if TYPE_CHECKING:
    from train.data.shards.index import ShardIndex

TABLE_SUFFIXES: Final = (".csv", ".tsv", ".parquet")
COMMANDS: Final = ("pack", "index")


def index_shards(config: RunConfig) -> str:
    """Index the shards in data.root. Raises Failure: as `shard_index.write_index`."""
    from train.data.shards import index as shard_index  # numpy

    root = Path(config.data.root)
    lines = list[str]()
    lines.insert(0, _describe(shard_index.write_index(root, task=config.data.task, say=lines.append)))
    for reason in shard_index.LEFT_OUT:
        if names := shard_index.list_left_out(root, reason):
            lines.append(f"left out       {len(names):,} {reason}: {list_some(names)}")
    return join_lines(lines)


def pack_shards(
    config: RunConfig,
    output: str | None,
    size: int | None,
    quality: int | None,
    console: TextIO,
    *,
    file: str | None = None,
    overrides: Sequence[str] = (),
) -> str:
    """Pack the images of the config's data into shards. file, overrides: what the config is from.

    Raises:
        Failure: as `packing.pack_images`; USAGE.
    """
    from train.data.shards import packing  # torch

    if output is None:
        raise Failure(
            "`train data pack` needs a folder to write to", fix="add --output DIR, a new folder", code=ExitCode.USAGE
        )
    for option, value, least, most in (("--size", size, 16, 65_535), ("--quality", quality, 1, 100)):
        if value is not None and not least <= value <= most:
            raise Failure(
                f"{option} is out of range",
                found=f"{option} {value}",
                fix=f"give a number from {least} to {most}",
                code=ExitCode.USAGE,
            )
    scaling = None
    if size is not None:
        scaling = packing.Scaling(size=size, quality=quality or packing.DEFAULT_QUALITY)
    elif quality is not None:
        raise Failure(
            "--quality is that of scaled images, and none are scaled",
            fix="add --size PIXELS, the shorter side, or leave --quality out",
            code=ExitCode.USAGE,
        )
    index = packing.pack_images(
        config.data, Path(output), scaling=scaling, say=lambda line: print_message(line, console)
    )
    packed = [f"data.{key}={value}" for key, value in (("name", "shards"), ("root", output))]
    if (Path(config.run.output_dir) / config.run.name).exists():  # it would go on, and was begun with the files
        packed.append(f"run.name={config.run.name}-shards")
    settings = load.keep_last_overrides([*overrides, *_reset_unused_keys(config.data), *packed])
    command = shell_command("train", *(["--config", file] if file else []), *settings)
    return join_lines([_describe(index), f"train on them:  {command}"])


def _reset_unused_keys(data: DataConfig) -> list[str]:
    """Settings that take back what the config sets for its own source, and what shards refuse."""
    default = DataConfig()
    unused = sorted(registry.unused_keys(RunConfig(data=replace(data, name="shards"))))
    names = [key.removeprefix("data.") for key in unused if key.startswith("data.")]
    changed = [name for name in names if getattr(data, name) != getattr(default, name)]
    return [f"data.{name}={load.format_value(getattr(default, name))}" for name in changed]


def with_source(config: RunConfig, command: str, source: str) -> RunConfig:
    """The config with the SOURCE of the command line: a folder of shards, or a folder or table of images."""
    name = config.data.name
    if command == "pack" and name == "synthetic":
        name = "table" if Path(source).suffix.lower() in TABLE_SUFFIXES else "folder"
    return replace(config, data=replace(config.data, name=name, root=source))


def _describe(index: ShardIndex) -> str:
    from train.data.shards.index import SPLITS, count_images

    images = {split: count_images(index.shards, split) for split in SPLITS}
    counts = ", ".join(f"{count:,} for {split}" for split, count in images.items() if count)
    size = files.format_bytes(sum(shard.size for shard in index.shards))
    outputs = TASKS[index.labels.task].describe_outputs(index.labels.classes)
    shards = f"{len(index.shards):,} tar file{'s' * (len(index.shards) != 1)}"
    return f"shards         {shards} of {size}, {outputs}, images: {counts}"
