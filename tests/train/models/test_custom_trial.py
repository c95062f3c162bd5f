"""A network is tried on samples of the data's shape without a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from train.data.shape import Shape
from train.models import custom

SHAPE = Shape(channels=3, size=(4, 4))


class Made(nn.Module):
    """A layer and a norm, and what is made of their scores."""

    def __init__(self, give: Callable[[Tensor], Any] = lambda scores: scores) -> None:
        super().__init__()
        self.norm, self.layer, self.give = nn.BatchNorm2d(3), nn.Linear(48, 5), give

    def forward(self, x: Tensor) -> Any:
        """[n, 3, 4, 4] to what `give` makes of [n, 5]."""
        return self.give(self.layer(self.norm(x + torch.rand(1)).flatten(1)))


@pytest.mark.parametrize("trying", [custom.eval_forward_error, custom.train_forward_error, custom.forward_error])
def test_a_network_with_one_score_per_class_passes(trying: Callable[..., str | None]) -> None:
    assert trying(nn.Sequential(nn.Flatten(), nn.Linear(48, 5)), SHAPE, 5) is None


@pytest.mark.parametrize(
    ("give", "said"),
    [
        (lambda scores: scores.tolist(), "it gives a list"),
        (lambda scores: (scores, scores), "it gives a tuple"),
        (lambda scores: {"logits": scores}, "it gives a dict"),
        (lambda scores: None, "it gives a NoneType"),
        (lambda scores: scores[:1], "it gives [1, 5]"),
        (lambda scores: scores[:, :4], "it gives [2, 4]"),
        (lambda scores: scores.T, "it gives [5, 2]"),
        (lambda scores: scores.sum(), "it gives []"),
        (lambda scores: scores[..., None], "it gives [2, 5, 1]"),
        (lambda scores: scores.argmax(1), "it gives [2]"),
        (lambda scores: scores.long(), "numbers of type torch.int64"),
        (lambda scores: scores.detach(), "none of its weights can be trained"),
        (lambda scores: scores.detach() + 0 * scores.sum().detach(), "none of its weights"),
    ],
)
def test_other_outputs_are_named(give: Callable[[Tensor], Any], said: str) -> None:
    assert said in str(custom.eval_forward_error(Made(give), SHAPE, 5))


def test_weights_without_a_part_in_the_output_are_named() -> None:
    net = Made()
    net.idle = nn.Linear(2, 2)
    assert custom.eval_forward_error(net, SHAPE, 5) == "its output does not depend on idle.weight, idle.bias"
    net.idle.requires_grad_(False)
    assert custom.eval_forward_error(net, SHAPE, 5) is None


@pytest.mark.parametrize("trying", [custom.eval_forward_error, custom.train_forward_error, custom.forward_error])
def test_the_generator_stays_where_it_was(trying: Callable[..., str | None]) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(48, 5), nn.RReLU())
    before = torch.get_rng_state()
    trying(net, SHAPE, 5)
    assert torch.equal(torch.get_rng_state(), before)


def test_buffers_gradients_and_modes_stay_as_they_were() -> None:
    net = Made()
    net.norm.eval()
    net.register_buffer("count", torch.zeros(1))
    net.register_forward_hook(lambda *_: net.count.add_(1) and None)
    custom.eval_forward_error(net, SHAPE, 5)
    assert (net.training, net.norm.training, net.count.item(), net.layer.weight.grad) == (True, False, 0, None)


class Begun(nn.Module):
    """Scales as its first batch in training says, keeps a mean in a new tensor each time, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale, self.calls = nn.Linear(48, 5), nn.Parameter(torch.ones(1)), 0
        self.register_buffer("mean", torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        """[n, 3, 4, 4] to [n, 5]."""
        if self.training and not self.calls:
            self.scale.data.fill_(x.std())
        self.calls += 1
        self.mean = 0.9 * self.mean + x.mean()
        return self.layer(x.flatten(1)) * self.scale  # type: ignore[no-any-return]


@pytest.mark.parametrize("trying", [custom.eval_forward_error, custom.train_forward_error])
def test_a_buffer_that_the_network_replaces_is_what_it_was(trying: Callable[..., str | None]) -> None:
    net = Begun()
    mean = net.mean
    assert trying(net, SHAPE, 5) is None
    assert net.mean is mean
    assert net.mean.item() == 1


def test_a_trial_of_training_leaves_nothing_that_a_first_batch_would() -> None:
    net = Begun()
    weight = net.layer.weight.clone()
    assert custom.train_forward_error(net, SHAPE, 5) is None
    assert (net.calls, net.scale.item()) == (0, 1)
    assert torch.equal(net.layer.weight, weight)


class Silent(Made):
    """Keeps its norm in evaluation mode, and returns nothing from `train`."""

    def train(self, mode: bool = True) -> None:  # type: ignore[override]
        super().train(mode)
        self.norm.eval()


def test_a_network_whose_train_returns_nothing_passes() -> None:
    assert custom.eval_forward_error(Silent(), SHAPE, 5) is None


def test_lazy_layers_find_their_sizes() -> None:
    net = nn.Sequential(nn.Flatten(), nn.LazyLinear(5))
    assert custom.eval_forward_error(net, SHAPE, 5) is None
    assert net[1].weight.shape == (5, 48)


@pytest.mark.parametrize("trying", [custom.train_forward_error, custom.forward_error])
def test_a_training_steps_second_output_is_seen(trying: Callable[..., str | None]) -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return (x, x) if self.training else x

    assert trying(Two(), SHAPE, 5) == "for 2 samples it gives a tuple"


def test_small_samples_are_computed_and_the_statistics_of_norms_stay() -> None:
    net = Made()
    seen: list[torch.device] = []
    net.register_forward_hook(lambda *arguments: seen.append(arguments[2].device))
    custom.forward_error(net, SHAPE, 5)
    assert (seen, int(net.norm.num_batches_tracked)) == ([torch.device("cpu")], 0)


def test_large_samples_are_not_computed() -> None:
    net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 5))
    seen: list[str] = []
    net.register_forward_hook(lambda *arguments: seen.append(arguments[2].device.type))
    assert custom.forward_error(net, Shape(channels=3, size=(224, 224)), 5) is None
    assert seen == ["meta"]
