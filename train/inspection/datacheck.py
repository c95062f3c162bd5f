"""`train data check`: every sample is read once, and what is wrong with the data is said before training."""

from __future__ import annotations

from collections.abc import Callable

from entrypoint import processors
from train import plugin
from train.data import catalog, distribution
from train.data.folder import Files
from train.data.sets import Sets, Source
from train.inspection.findings import Findings, Side
from train.inspection.inspection import looks
from train.settings.config import RunConfig


def check(config: RunConfig, *, beside: str | None, tell: Callable[[str], None]) -> Findings:
    """Read everything on all cores of this process.

    Args:
        beside: the config file, beside which a module of the user's own may lie.
        tell: takes a line that says how far it is, often.

    Raises:
        Failure: what opening the data raises; IO or RESOURCE where the system fails.
    """
    plugin.look_beside(beside, config.data.name, config.model.name)
    sets = catalog.open_sets(config.data)
    total = len(sets.training.labels) + len(sets.held_out.labels)
    least = config.data.image_size if isinstance(sets.training, Files) else 0
    training, held_out = _side("training", sets.training, least), _side("held-out", sets.held_out, least)
    for side, source, other in ((training, sets.training, None), (held_out, sets.held_out, training)):
        for look in looks(source, sets.shape, processors()):
            side.add(look, other)
            tell(f"{training.samples + held_out.samples:,} of {total:,} samples read")
    return _findings(config, sets, training, held_out)


def _findings(config: RunConfig, sets: Sets, training: Side, held_out: Side) -> Findings:
    where = f" ({config.data.root})" if isinstance(sets.training, Files) else ""
    labels = sets.training.labels, sets.held_out.labels
    one, other = (_per_class(sets, side) for side in (sets.training, sets.held_out))
    notes = [*(f"WARNING: {warning}" for warning in sets.warnings), *(f"note: {note}" for note in sets.notes)]
    return Findings(
        title=f"{config.data.name}{where}: {len(sets.classes)} classes",
        training=training,
        held_out=held_out,
        classes=[*notes, *distribution.lines(*labels, sets.classes, config.optim.class_weights)],
        per_class=(one, other),
    )


def _side(name: str, source: Source, least: int) -> Side:
    labels = source.labels.tolist()

    def name_of(sample: int) -> str:
        return str(source.paths[sample]) if isinstance(source, Files) else f"{name} sample {sample}"

    return Side(name_of=name_of, label_of=labels.__getitem__, least=least)


def _per_class(sets: Sets, source: Source) -> dict[str, int]:
    counted = distribution.counts(source.labels, len(sets.classes))
    return {name: int(count) for name, count in zip(sets.classes, counted, strict=True)}
