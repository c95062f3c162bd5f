"""Focal loss (https://arxiv.org/abs/1708.02002), a loss of the user's own: `optim.loss: focal:Focal`."""

from torch import nn
from torch.nn.functional import cross_entropy


class Focal(nn.Module):
    def forward(self, outputs, labels):
        losses = cross_entropy(outputs, labels, reduction="none")
        return (1 - (-losses).exp()) ** 2 * losses
