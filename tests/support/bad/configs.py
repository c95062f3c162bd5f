"""Files that are no configuration, and values that no key takes: `train check` refuses them."""

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
    "tab-indents": ("", "run:\n\tname: x\n", ("cfg.yaml, line 2, column 1", "not valid YAML"), "spaces (no tabs)"),
    "unclosed-bracket": ("", "data: {name: synthetic\n", ("cfg.yaml, line", "not valid YAML"), "mend line"),
    "unclosed-quote": ("", "run: {name: 'x}\n", ("cfg.yaml, line", "not valid YAML"), "mend line"),
    "no-colon": ("", "optim\n  lr: 1\n", ("cfg.yaml, line 2", "not valid YAML"), "mend line 2"),
    "two-documents": ("", "run: {}\n---\nrun: {}\n", ("cfg.yaml, line 2", "another document"), "mend line 2"),
    "unknown-alias": ("", "run: {name: *x}\n", ("cfg.yaml, line 1", "undefined alias"), "mend line 1"),
    "percent-directive": ("", "%YAML 3.0\n---\nrun: {}\n", ("cfg.yaml, line 1", "not valid YAML"), "mend line 1"),
    "windows-1252": ("", "run: {name: Versuch-ä}\n".encode("cp1252"), ("--config cfg.yaml", "UTF-8"), "UTF-8"),
    "utf-16": ("", "run: {name: x}\n".encode("utf-16"), ("--config cfg.yaml", "UTF-8"), "save it as UTF-8"),
    "an-image": ("", b"\x89PNG\r\n\x1a\n" + bytes(range(256)), ("--config cfg.yaml", "UTF-8"), "save it as UTF-8"),
    "nul": ("", "run: {name: 'a\0b'}\n", ("cfg.yaml, line 1", "'\\x00'", "not allowed"), "remove it"),
    "escape": ("", "run:\n  name: \x1b[2Jx\n", ("cfg.yaml, line 2", "'\\x1b'", "not allowed"), "remove it"),
    "ten-megabytes": ("49", "a: " + "x" * 10_000_000, ("cfg.yaml", "larger than 256 KiB"), "not a data file"),
    "anchor-bomb": ("49", BOMB, ("cfg.yaml, line", "more values, aliases or levels"), "at most 10000 values"),
    "hundred-aliases": ("49", "a: &a 1\nb: [" + "*a, " * 101 + "]\n", ("more values, aliases",), "100 aliases"),
    "deep-nesting": ("49", "a: " + "[" * 5000 + "]" * 5000, ("cfg.yaml, line 1", "levels"), "20 levels"),
    "deep-indents": ("49", "".join(" " * n + f"k{n}:\n" for n in range(40)), ("cfg.yaml, line", "levels"), "20 levels"),
    "many-values": ("49", "a: [" + "1," * 20_000 + "]", ("more values",), "10000 values"),
    "expanded-values": (
        "49",
        "a: &a [" + "1," * 500 + "]\nb: [" + "*a," * 30 + "]\n",
        ("more values",),
        "10000 values",
    ),
    "recursive-alias": ("49", "a: &a [*a]\n", ("cfg.yaml, line 1", "more values"), "levels"),
    "duplicate-key": (
        "48",
        "optim: {lr: 1}\noptim: {lr: 2}\n",
        ("optim is written twice", "line 1", "line 2"),
        "remove one",
    ),
    "duplicate-inner": ("48", "optim:\n  lr: 1\n  lr: 1\n", ("optim.lr is written twice", "line 3"), "remove one"),
    "quoted-duplicate": ("48", "optim: {lr: 1, 'lr': 2}\n", ("optim.lr is written twice",), "remove one"),
    "number-as-key": ("46", "optim: {1: 2}\n", ("cfg.yaml, line 1", "a key must be text"), "in quotes"),
    "null-as-key": ("46", "optim: {~: 2}\n", ("a key must be text",), "in quotes"),
    "list-as-key": ("46", "? [a, b]\n: 1\n", ("a key must be text",), "in quotes"),
    "map-as-key": ("46", "{{a: 1}: 2}\n", ("a key must be text",), "in quotes"),
    "merge-key": ("47", "optim: {<<: {lr: 1}}\n", ("unknown key optim.<<", "line 1"), "remove optim.<<"),
    "foreign-tag": ("50", "run: !mine {name: x}\n", ("cfg.yaml, line 1", "!mine", "not used"), "remove the tag"),
    "binary-tag": ("50", "run: {name: !!binary aGk=}\n", ("!!binary", "not used"), "remove the tag"),
    "set-tag": ("50", "optim: !!set {a, b}\n", ("!!set", "not used"), "remove the tag"),
    "float-tag": ("46", "optim: {lr: !!float fast}\n", ("!!float", "not used"), "remove the tag"),
    "text": ("46", "just text\n", ("the configuration", "just text", "cfg.yaml, line 1"), "key: value"),
    "list": ("46", "- run\n- data\n", ("the configuration", "a mapping"), "key: value"),
    "section-list": ("46", "run: {}\noptim: [lr, 1]\n", ("optim", "cfg.yaml, line 2", "a mapping"), "below `optim:`"),
    "section-number": (
        "46",
        "launch: {timeouts: 5}\n",
        ("launch.timeouts: 5", "a mapping"),
        "below `launch.timeouts:`",
    ),
    "name-for-a-section": (
        "46",
        "model: resnet18\n",
        ("model: resnet18", "a mapping"),
        "write model: {name: resnet18}",
    ),
    "unknown-section": ("47", "optimizer: {lr: 1}\n", ("unknown key optimizer", "line 1", "one of run"), "optim"),
    "unknown-key": ("47", "\n\noptim: {lrr: 0.1}\n", ("unknown key optim.lrr", "cfg.yaml, line 3"), "write optim.lr"),
    "key-at-the-top": ("47", "epochs: 3\n", ("unknown key epochs", "epochs: 3"), "train.epochs"),
    "key-of-another-section": ("47", "train: {lr: 0.1}\n", ("unknown key train.lr",), "optim.lr"),
    "key-below-args": (
        "47",
        "launch: {timeouts: {stop: 5}}\n",
        ("unknown key launch.timeouts.stop",),
        "launch.timeouts.step",
    ),
    "key-in-capitals": ("47", "Optim: {LR: 1}\n", ("unknown key Optim",), "optim"),
    "key-with-a-line-break": ("47", '"a\\nb": 1\n', ("unknown key", "a\\nb"), "remove"),
    "text-for-a-number": (
        "46",
        "optim: {lr: fast}\n",
        ("optim.lr", "fast", "cfg.yaml, line 1", "a number"),
        "plain number",
    ),
    "yes-for-true": ("46", "data: {download: yes}\n", ("data.download: 'yes'", "true or false"), "true"),
    "no-for-false": ("46", "log: {tensorboard: no}\n", ("log.tensorboard: 'no'", "true or false"), "false"),
    "fraction-for-a-whole": ("46", "train: {epochs: 2.5}\n", ("train.epochs: 2.5", "a whole number"), "default is 5"),
    "octal": ("46", "train: {epochs: 0777}\n", ("train.epochs: '0777'", "a whole number"), "0777"),
    "clock": ("46", "run: {seed: 12:30:00}\n", ("run.seed: '12:30:00'", "a whole number"), "12:30:00"),
    "400-digits": ("46", f"run: {{seed: {'9' * 400}}}\n", ("run.seed: .inf", "a whole number"), "default is 0"),
    "list-for-text": ("46", "run: {name: [a]}\n", ("run.name: [a]", "text"), "write run.name: a"),
    "null-for-text": ("46", "run: {name: null}\n", ("run.name: null", "text"), "correct it"),
    "nan": ("46", "optim: {lr: .nan}\n", ("optim.lr", "nan", "finite numbers"), "correct it"),
    "1e400": ("46", "optim: {weight_decay: 1e400}\n", ("optim.weight_decay", "inf", "finite"), "correct it"),
    "two-lines-of-text": ("46", 'run: {name: "a\\nb"}\n', ("run.name", "control characters"), "correct it"),
    "name-leads-out": ("52", "run: {name: ../../etc}\n", ("run.name: ../../etc", "no slash"), "correct it"),
    "long-name": ("46", f"run: {{name: {'x' * 300}}}\n", ("run.name", "shorter than 200"), "correct it"),
    "home": ("46", "run: {output_dir: ~/runs}\n", ("run.output_dir", "without ~"), "correct it"),
    "unclosed-group": (
        "46",
        "data: {name: folder, group: 'video_(\\d+'}\n",
        ("data.group", "regular expression"),
        "correct it",
    ),
    "not-an-address": (
        "46",
        "data: {mirror: 'ftp://me:pw@x'}\n",
        ("data.mirror: ftp://(not shown)@x", "https://"),
        "correct it",
    ),
    "unknown-tracker": ("47", "log: {trackers: [visdom]}\n", ("log.trackers: [visdom]", "mlflow"), "correct it"),
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
