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
    refuse_second_splits(data, validation=layout.validation, test=layout.test)
    return layout


def refuse_second_splits(data: DataConfig, *, validation: object = None, test: object = None) -> None:
    """Refuse data.fold and data.test_fraction if the data has validation or test images of its own.

    validation, test: where these are; None: nowhere.

    Raises:
        Failure: USAGE.
    """
    if validation is not None and data.fold is not None:
        raise Failure(
            "data.fold does not go with validation images of their own",
            found=f"data.fold: {data.fold}, and {validation}",
            expected="one list of images, of which each fold is once the validation split",
            fix=f"leave data.fold out; or move the images of {validation} to the training images",
            code=ExitCode.USAGE,
        )
    if test is not None and data.test_fraction:
        raise Failure(
            "data.test_fraction does not go with test images of their own",
            found=f"data.test_fraction: {data.test_fraction:g}, and {test}",
            fix=f"leave data.test_fraction out: {test} is the test split; or move it out of data.root",
            code=ExitCode.USAGE,
        )


def refuse_wrong_class_count(data: DataConfig, count: int, noun: str, location: str, of_what: str = "") -> None:
    """Refuse a data.classes that is not the number of classes. Its default claims nothing.

    noun, of_what: such as "classes" and " in the table".

    Raises:
        Failure: DATA.
    """
    if data.classes not in (count, DataConfig().classes):
        raise Failure(
            f"data.classes is not the number of {noun}{of_what}",
            found=f"{count} {noun} in {location}",
            expected=f"data.classes: {data.classes}",
            fix=f"set data.classes to {count}, or leave it out",
            code=ExitCode.DATA,
        )
