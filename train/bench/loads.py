"""What is trained in a comparison, said once: as settings of ours and as arguments of a peer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from train.bench import noise

FOREVER: Final = 1_000_000  # epochs
LOG_EVERY: Final = 100  # steps, on both sides
LR: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A network and its batches. batch: of one process. size: pixels."""

    model: Literal["wide_resnet", "tiny"] = "wide_resnet"
    width: int = 10
    size: int = 32
    classes: int = 100
    samples: int = 50_000
    batch: int = 256
    precision: Literal["fp32", "bf16"] = "fp32"
    augment: bool = False
    compile: Literal["default", "reduce-overhead"] | None = None

    def settings(self, *, procs: int = 1) -> list[str]:
        """Of ours: `section.key=value`."""
        args = {"wide_resnet": f"{{depth: 2, width: {self.width}, dropout: 0.01}}", "tiny": "{}"}[self.model]
        name = {"wide_resnet": "wide_resnet", "tiny": "workload:tiny"}[self.model]
        return [
            f"data.name={noise.NAME}",
            f"data.samples={self.samples}",
            f"data.image_size={self.size}",
            f"data.classes={self.classes}",
            "data.val_fraction=0",
            "data.loader=memory",
            f"data.augment={'standard' if self.augment else 'none'}",
            f"model.name={name}",
            f"model.args={args}",
            f"optim.lr={LR}",
            f"train.global_batch_size={self.batch * procs}",
            f"train.micro_batch_size={self.batch}",
            f"train.precision={self.precision}",
            f"train.compile={self.compile or 'false'}",
            f"train.epochs={FOREVER}",
            f"eval.every_epochs={FOREVER}",
            "checkpoint.every_minutes=null",
            f"log.every_steps={LOG_EVERY}",
        ]

    def words(self) -> list[str]:
        """Of the bare loop; the others know all but --augment and --compile."""
        return [
            *self.plain(),
            *(["--precision", self.precision]),
            *(["--augment"] if self.augment else []),
            *(["--compile", self.compile] if self.compile else []),
        ]

    def plain(self) -> list[str]:
        """What every peer takes."""
        given = {
            "--model": self.model,
            "--width": self.width,
            "--size": self.size,
            "--classes": self.classes,
            "--samples": self.samples,
            "--batch": self.batch,
            "--lr": LR,
            "--log-every": LOG_EVERY,
        }
        return [word for name, value in given.items() for word in (name, str(value))]


# The reference workload on a GPU, and what stands for it on two cores: a hundredth of the work of an image.
REFERENCE: Final = Load(precision="bf16", augment=True)
SMALL: Final = Load(width=1, samples=4_000)
# A step of less than a millisecond, so that the loop's own time shows.
LOOP: Final = Load(model="tiny", size=8, classes=2, samples=4_096, batch=8)
# An epoch of the usual length in steps that are short: its end shows.
EPOCHS: Final = Load(model="tiny", classes=10, samples=50_000, batch=256)
# Two processes share two cores, and a step takes 20 ms or more.
TOGETHER: Final = Load(width=1, classes=10, samples=4_000, batch=8)
