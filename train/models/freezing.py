"""`model.freeze`: the layers before the last one keep their weights, for the whole run or for its first epochs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from entrypoint import ExitCode, Failure
from train.config.schema import ModelConfig
from train.models import weights

NEVER: Final = "none"
ALWAYS: Final = "backbone"


@dataclass(slots=True, kw_only=True)
class Freezing:
    """Freezes and unfreezes the backbone: all layers of `network` but the last.

    A frozen parameter requires no gradient. BatchNorm layers whose parameters are all frozen compute in evaluation
    mode: they normalize with the statistics that belong to the weights, and keep them. Parameters and layers that the
    user's own network froze itself stay as they are.

    backbone: parameters by name. until: the optimizer step from which everything is trained; None: never.
    """

    network: nn.Module
    backbone: dict[str, nn.Parameter]
    until: int | None
    is_frozen: bool = False
    norms: list[_BatchNorm] = field(default_factory=list)

    def freeze_parameters(self, frozen: bool) -> None:
        """Set whether the parameters require gradients, without touching the modes of layers."""
        for parameter in self.backbone.values():
            parameter.requires_grad_(not frozen)

    def update(self, step: int) -> bool:
        """Freeze or unfreeze for the step after `step` finished ones; returns whether that changed anything."""
        frozen = self.until is None or step < self.until
        if frozen == self.is_frozen:
            return False
        self.is_frozen = frozen
        self.freeze_parameters(frozen)
        if frozen:
            self.norms = self.backbone_norms()
        for norm in self.norms:
            norm.train(not frozen)
        return True

    def __str__(self) -> str:
        duration = "for the whole run" if self.until is None else f"until step {self.until}, then all are trained"
        return f"model.freeze: {len(self.backbone)} parameter tensors before the last layer are frozen {duration}"

    def backbone_norms(self) -> list[_BatchNorm]:
        """The BatchNorm layers in training mode whose statistics belong to the frozen weights."""
        own = {id(parameter) for parameter in self.backbone.values()}
        return [
            module
            for module in self.network.modules()
            if isinstance(module, _BatchNorm)
            and module.training
            and all(id(parameter) in own for parameter in module.parameters(recurse=False))
        ]


def build_freezing(model: ModelConfig, network: nn.Module, steps_per_epoch: int) -> Freezing | None:
    """What `model.freeze` asks for; None for none.

    Raises:
        Failure: USAGE for a network with a single layer, of which nothing would be frozen.
    """
    if model.freeze == NEVER:
        return None
    head = weights.head_names(network)
    backbone = {
        name: parameter
        for name, parameter in network.named_parameters()
        if parameter.requires_grad and name not in head
    }
    if not backbone or len(backbone) == len(list(network.parameters())):
        raise Failure(
            f"model.freeze {model.freeze} does not fit {model.name}",
            found="a network without trainable layers before the last one" if not backbone else "no last layer",
            fix="leave model.freeze out",
            code=ExitCode.USAGE,
        )
    until = None if model.freeze == ALWAYS else int(model.freeze) * steps_per_epoch
    return Freezing(network=network, backbone=backbone, until=until)
