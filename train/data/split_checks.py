"""Refuses splits that are asked for twice: by a key of the config, and by a folder or file of their own.

This module does not import numpy: every task of a job calls it.
"""

from __future__ import annotations

from pathlib import Path

from entrypoint import ExitCode, Failure
from train.config.schema import DataConfig
from train.data import class_folders
from train.data.class_folders import FolderLayout


def find_layout(data: DataConfig) -> FolderLayout:
    """The folders of the splits below data.root.

    Raises:
        Failure: as `class_folders.find_layout`; USAGE for a split that has a folder and is asked for by a key too.
    """
    layout = class_folders.find_layout(Path(data.root), keep_test=data.fold is not None)
    if layout.validation is not None:
        refuse_second_validation_split(data, str(layout.validation))
    if layout.test is not None:
        refuse_second_test_split(data, str(layout.test))
    return layout


def refuse_second_validation_split(data: DataConfig, location: str) -> None:
    """Refuse data.fold if the data has validation images of its own. location: where they are.

    Raises:
        Failure: USAGE.
    """
    if data.fold is not None:
        raise Failure(
            "data.fold does not go with validation images of their own",
            found=f"data.fold: {data.fold}, and {location}",
            expected="one list of images, of which each fold is once the validation split",
            fix=f"leave data.fold out; or move the images of {location} to the training images",
            code=ExitCode.USAGE,
        )


def refuse_second_test_split(data: DataConfig, location: str) -> None:
    """Refuse data.test_fraction if the data has test images of its own. location: where they are.

    Raises:
        Failure: USAGE.
    """
    if data.test_fraction:
        raise Failure(
            "data.test_fraction does not go with test images of their own",
            found=f"data.test_fraction: {data.test_fraction:g}, and {location}",
            fix=f"leave data.test_fraction out: {location} is the test split; or move it out of data.root",
            code=ExitCode.USAGE,
        )


def refuse_wrong_class_count(data: DataConfig, count: int, noun: str, location: str) -> None:
    """Refuse a data.classes that is not the number of classes. Its default claims nothing.

    Raises:
        Failure: DATA.
    """
    if data.classes not in (count, DataConfig().classes):
        raise Failure(
            f"data.classes is not the number of {noun}",
            found=f"{count} {noun.removesuffix(' in the table')} in {location}",
            expected=f"data.classes: {data.classes}",
            fix=f"set data.classes to {count}, or leave it out",
            code=ExitCode.DATA,
        )
