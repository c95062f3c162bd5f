"""A data set of your own: pictures of stripes, lying or standing. Copy it, and let it open your files instead.

Run it in this folder, alone or as two processes on the CPU:

    train --config my_dataset.yaml
    train --config my_dataset.yaml --device cpu --procs-per-node 2
"""

import numpy as np
from PIL import Image


class Stripes:
    """Two methods are all that a data set needs: how many items there are, and one of them by its number."""

    classes = ("lying", "standing")  # their names, in the order of the labels 0 and 1

    def __init__(self, rows):
        self.rows = rows
        self.targets = [row % 2 for row in rows]  # all labels: without this list, each item is read once to learn it

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, item):
        # The same number must always give the same image. Yours would be: Image.open(self.files[item])
        draw = np.random.default_rng(self.rows[item])
        pixels = np.repeat(draw.integers(0, 256, (40, 1, 3), dtype=np.uint8), 50, axis=1)  # height, width, channels
        if self.targets[item] == 1:
            pixels = pixels.swapaxes(0, 1)
        return Image.fromarray(pixels), self.targets[item]  # of any size: it is scaled to data.image_size


def make(data):
    """Called by `train`. data: the section `data` of the config, so that data.root says where your files are."""
    training, validation = range(400), range(400, 500)  # no image may be in both
    return Stripes(training), Stripes(validation)  # None instead: data.val_fraction of the first
