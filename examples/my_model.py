"""A network of your own: two convolutions and a layer that gives the scores. Copy it, and change what is inside.

Run it in this folder, alone or as two processes on the CPU:

    train --config my_model.yaml
    train --config my_model.yaml --device cpu --procs-per-node 2
"""

from torch import nn


class Net(nn.Module):
    """Images in, one score for each class out. The loss (cross-entropy) wants scores, so there is no softmax here."""

    def __init__(self, channels, classes, hidden):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(channels, hidden, 3, stride=2, padding=1),  # [n, hidden, height / 2, width / 2]
            nn.GroupNorm(1, hidden),  # sees each image alone, so that the number of GPUs changes nothing
            nn.ReLU(),
            nn.Conv2d(hidden, 2 * hidden, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),  # [n, 2 * hidden, 4, 4]: images of any size fit
            nn.Flatten(),
        )
        self.last = nn.Linear(2 * hidden * 4 * 4, classes)

    def forward(self, images):  # float32 [n, channels, height, width], bytes laid around 0
        return self.last(self.features(images))


def make(classes, shape, hidden=16):
    """Called by `train`: classes and shape come from the data, everything else from model.args."""
    return Net(shape.channels, classes, hidden)
