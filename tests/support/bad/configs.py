"""Files that are no configuration, and values that no key takes: `train check` refuses them.

Every kind of bad value and text is in tests/train/config, in test_load.py and test_schema.py. Here are some of each
row of failures.md, and what only a whole file meets.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bad.case import PAYLOAD, Case, through_train

check = partial(Case, door=through_train)
BOMB = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))

# What a file holds: id -> (row of failures.md, text, words of the message, words of the fix). Code 64.
TEXTS: dict[str, tuple[str, str | bytes, tuple[str, ...], str]] = {
    "unclosed-bracket": ("", "data: {name: synthetic\n", ("cfg.yaml, line", "not valid YAML"), "mend line"),
    "no-colon": ("", "optim\n  lr: 1\n", ("cfg.yaml, line 2", "not valid YAML"), "mend line 2"),
    "windows-1252": ("", "run: {name: Versuch-ä}\n".encode("cp1252"), ("--config cfg.yaml", "UTF-8"), "UTF-8"),
    "utf-16": ("", "run: {name: x}\n".encode("utf-16"), ("--config cfg.yaml", "UTF-8"), "save it as UTF-8"),
    "an-image": ("", b"\x89PNG\r\n\x1a\n" + bytes(range(256)), ("--config cfg.yaml", "UTF-8"), "save it as UTF-8"),
    "nul": ("", "run: {name: 'a\0b'}\n", ("cfg.yaml, line 1", "'\\x00'", "not allowed"), "remove it"),
    "escape": ("", "run:\n  name: \x1b[2Jx\n", ("cfg.yaml, line 2", "'\\x1b'", "not allowed"), "remove it"),
    "ten-megabytes": ("49", "a: " + "x" * 10_000_000, ("cfg.yaml", "larger than 1024 KiB"), "not a data file"),
    "anchor-bomb": ("49", BOMB, ("cfg.yaml, line", "more values or levels"), "at most 50000 values"),
    "deep-indents": ("49", "".join(" " * n + f"k{n}:\n" for n in range(40)), ("cfg.yaml, line", "levels"), "20 levels"),
    "expanded-values": (
        "49",
        "a: &a [" + "1," * 1000 + "]\nb: [" + "*a," * 60 + "]\n",
        ("more values",),
        "50000 values",
    ),
    "duplicate-key": (
        "48",
        "optim: {lr: 1}\noptim: {lr: 2}\n",
        ("optim is written twice", "line 1", "line 2"),
        "remove one",
    ),
    "quoted-duplicate": ("48", "optim: {lr: 1, 'lr': 2}\n", ("optim.lr is written twice",), "remove one"),
    "number-as-key": ("46", "optim: {1.5: 2}\n", ("cfg.yaml, line 1", "a key must be text"), "in quotes"),
    "null-as-key": ("46", "optim: {~: 2}\n", ("a key must be text",), "in quotes"),
    "map-as-key": ("46", "{{a: 1}: 2}\n", ("a key must be text",), "in quotes"),
    "foreign-tag": ("50", "run: !mine {name: x}\n", ("cfg.yaml, line 1", "!mine", "not used"), "remove the tag"),
    "binary-tag": ("50", "run: {name: !!binary aGk=}\n", ("!!binary", "not used"), "remove the tag"),
    "text": ("46", "just text\n", ("the configuration", "just text", "cfg.yaml, line 1"), "key: value"),
    "unknown-key": ("47", "\n\noptim: {lrr: 0.1}\n", ("unknown key optim.lrr", "cfg.yaml, line 3"), "write optim.lr"),
    "key-with-a-line-break": ("47", '"a\\nb": 1\n', ("unknown key", "a\\nb"), "remove"),
    "text-for-a-number": (
        "46",
        "optim: {lr: fast}\n",
        ("optim.lr", "fast", "cfg.yaml, line 1", "a number"),
        "plain number",
    ),
    "yes-for-true": ("46", "data: {download: yes}\n", ("data.download: 'yes'", "true or false"), "true"),
    "a-family-of-torchvision": (
        "",
        "model: {name: resnet}\n",
        ("model.name: resnet", "timm/NAME"),
        "model.name: resnet18",
    ),
    "a-family-of-timm": (
        "",
        "model: {name: timm/vit}\n",
        ("model.name: timm/vit",),
        "model.name: timm/vit_tiny_patch16_224",
    ),
    "no-model-of-timm": (
        "",
        "model: {name: timm/rsnet50}\n",
        ("model.name: timm/rsnet50",),
        "model.name: timm/resnet50",
    ),
    "a-tag-of-weights": (
        "",
        "model: {name: timm/resnet50.a1_in1k}\n",
        ("model.name",),
        "model.name: timm/resnet50",
    ),
    "a-model-that-would-fetch": (
        "",
        "model: {name: timm/resnet18, args: {pretrained: true}}\n",
        ("cannot set pretrained of timm/resnet18", "model.args.pretrained: True"),
        "model.weights",
    ),
    "a-family-of-timm-without-its-prefix": (
        "",
        "model: {name: efficientvit}\n",
        ("model.name",),
        "model.name: timm/efficientvit_",
    ),
    "one-side": ("46", "data: {image_size: [64]}\n", ("data.image_size: [64]", "or [height, width]"), "image_size: 64"),
    "a-tiny-side": ("46", "data: {image_size: [64, 4]}\n", ("data.image_size: [64, 4]", "from 8 to 4096"), "default"),
    "sides-with-an-x": (
        "46",
        "data: {image_size: 64x32}\n",
        ("data.image_size: 64x32",),
        "write data.image_size: [64, 32]",
    ),
    "sides-with-a-comma": (
        "46",
        'data: {image_size: "64, 32"}\n',
        ("data.image_size: 64, 32",),
        "write data.image_size: [64, 32]",
    ),
    "published-images-that-are-no-squares": (
        "",
        "data: {name: cifar10, image_size: [32, 64]}\n",
        ("data.image_size does not go with data.name: cifar10",),
        "set data.image_size to one number: 32 or 64",
    ),
    "gray-drawn-samples": (
        "",
        "data: {color: gray}\n",
        ("data.color does not go with data.name: synthetic",),
        "set data.name to folder or table",
    ),
    "an-unknown-fit": ("46", "data: {fit: squash}\n", ("data.fit: squash", "crop, pad, stretch"), "default is"),
    "a-border-cut-from-whole-images": (
        "",
        "data: {fit: pad, crop_ratio: 0.9}\n",
        ("data.fit: pad keeps whole images", "data.crop_ratio: 0.9"),
        "leave data.crop_ratio out",
    ),
    "400-digits": ("46", f"run: {{seed: {'9' * 400}}}\n", ("run.seed: .inf", "a whole number"), "default is 0"),
    "nan": ("46", "optim: {lr: .nan}\n", ("optim.lr", "nan", "finite numbers"), "correct it"),
    "two-lines-of-text": ("46", 'run: {name: "a\\nb"}\n', ("run.name", "control characters"), "correct it"),
    "name-leads-out": ("52", "run: {name: ../../etc}\n", ("run.name: ../../etc", "no slash"), "write run.name: etc"),
    "not-an-address": (
        "46",
        "data: {mirror: 'ftp://me:pw@x'}\n",
        ("data.mirror: ftp://(not shown)@x", "https://"),
        "correct it",
    ),
}
# The file itself: id -> (how it is made, exit code, words of the message, words of the fix).
FILES: dict[str, tuple[str, Callable[[Path], object], int, tuple[str, ...], str]] = {
    "no-file": ("", lambda path: None, 66, ("--config cfg", "does not exist", "looked in"), "leave --config out"),
    "dead-link": (
        "",
        lambda path: path.symlink_to("nowhere"),
        66,
        ("--config cfg", "does not exist"),
        "path of a YAML",
    ),
    "below-a-file": ("", lambda path: path.parent.write_text(""), 64, ("cfg", "Not a directory"), "correct the path"),
    "a-folder": ("", lambda path: path.mkdir(), 64, ("--config cfg", "not a regular file"), "give a regular file"),
    "a-pipe": ("", lambda path: os.mkfifo(path), 64, ("--config cfg", "not a regular file"), "give a regular file"),
    "a-device": ("", lambda path: path.symlink_to("/dev/zero"), 64, ("not a regular file",), "give a regular file"),
    "a-loop": ("", lambda path: path.symlink_to(path), 64, ("--config cfg", "symbolic link"), "correct the path"),
    "a-name-too-long": ("", lambda path: None, 64, ("--config", "name too long"), "correct the path"),
}
NAMED = {"below-a-file": "cfg/cfg.yaml", "a-name-too-long": "x" * 300}
# Tags that would run code, and words that look as if a shell would: code 77 or 64, and nothing is run.
TAGS = {
    "python-apply": f'run: !!python/object/apply:exec ["{PAYLOAD}"]\n',
    "python-new": f'run: {{name: !!python/object/new:type [x, [], {{}}]}}\noptim: {{lr: "{PAYLOAD}"}}\n',
    "python-module": "run: {name: !!python/module:this x}\n",
    "python-name": "model: {name: !!python/name:os.system x}\n",
    "python-tuple": "optim: {args: {betas: !!python/tuple [0.9, 0.99]}}\n",
    "python-verbatim": "run: !<tag:yaml.org,2002:python/object/apply:os.system> ['touch executed']\n",
    "python-key": "{!!python/object/apply:os.system ['touch executed']: 1}\n",
}


def _file(name: str, make: Callable[[Path], object], code: int, says: tuple[str, ...], fix: str, row: str) -> Case:
    path = NAMED.get(name, "cfg")
    return check(
        id=f"config-{name}",
        line=("check", "--config", path),
        prepare=lambda folder: make(folder / path),
        code=code,
        says=says,
        fix=fix,
        row=row,
    )


CASES = [
    *(
        check(id=f"config-{name}", config=text, code=64, says=says, fix=fix, row=row)
        for name, (row, text, says, fix) in TEXTS.items()
    ),
    *(_file(name, make, code, says, fix, row) for name, (row, make, code, says, fix) in FILES.items()),
    *(
        check(
            id=f"config-{name}",
            config=text,
            code=77,
            says=("cfg.yaml, line 1", "python", "nothing was run"),
            fix="plain values",
            row="50",
        )
        for name, text in TAGS.items()
    ),
]
