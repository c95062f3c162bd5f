"""A network of the user's is built and tried without a trace, or refused with what to mend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from entrypoint import Failure
from train.config.schema import ModelConfig
from train.data.shape import Shape
from train.models import custom, registry

CODE = """
import torch
from torch import nn

MOST = 3

def plain(classes, shape, hidden=4):
    inside = shape.channels * shape.size[0] * shape.size[1]
    return nn.Sequential(nn.Flatten(), nn.Linear(inside, hidden), nn.Linear(hidden, classes))

def without_shape(*, classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))

def anything(**options):
    return plain(options["classes"], options["shape"])

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.last = nn.LazyLinear(classes)
    def forward(self, x):
        return self.last(x.flatten(1))

def frames(classes, shape):
    return nn.Sequential(nn.Flatten(1, 2), nn.LazyConv2d(4, 3), nn.Flatten(), nn.LazyLinear(classes))

def no_classes(shape): ...
def needs_more(classes, depth): ...
def nothing(classes): ...
def a_function(classes): return lambda x: x
def a_class(classes): return Net
def fails(classes): raise KeyError("oh")
def leaves(classes): raise SystemExit(3)
def one_more(classes): return Net(classes + 1)
def pairs(classes): return nn.Sequential(Net(classes), nn.GRU(classes, classes))
def too_narrow(classes): return nn.Sequential(nn.Flatten(), nn.Linear(5, classes))
def no_weights(classes): return nn.Sequential(nn.Flatten(), nn.Linear(48, classes)).requires_grad_(False)
def idle(classes):
    net = Net(classes)
    net.never = nn.Linear(1, 1)
    return net
def trained_before(classes):
    return nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Dropout(0.5), nn.LazyLinear(classes)).eval()
def frozen_in_part(classes):
    net = trained_before(classes).train()
    net[0].eval()
    return net
def new_head(classes):
    net = trained_before(classes)
    net[3] = nn.LazyLinear(classes)
    return net
class Two(Net):
    def forward(self, x):
        return (super().forward(x), None) if self.training else super().forward(x)
class Mistyped(Net):
    def forward(self, x):
        return self.lost(x) if self.training else super().forward(x)
class Eighths(Net):
    def forward(self, x):
        parts = x.view(8, -1, *x.shape[1:]) if self.training else [x]
        return torch.cat([Net.forward(self, part) for part in parts])
class Masked(Net):
    def __init__(self, classes, persistent=True, of=float("-inf")):
        super().__init__(classes)
        self.register_buffer("mask", torch.full((2, 2), of).triu(1), persistent=persistent)
def undefined(classes):
    net = Net(classes)
    net.last = nn.Linear(48, classes)
    nn.init.constant_(net.last.bias, float("nan"))
    return net
def positional(classes, /): return Net(classes)
def probabilities(classes): return nn.Sequential(Net(classes), nn.Softmax(1))
class Squeezed(Net):
    def forward(self, x):
        return super().forward(x).squeeze()
class SqueezedEarly(Net):
    def forward(self, x):
        return self.last(nn.functional.adaptive_avg_pool2d(x, 1).squeeze())
class Unbatched(Net):
    def forward(self, x):
        return super().forward(x)[0] if len(x) == 1 else super().forward(x)
class WithoutStatistics(Net):
    def __init__(self, classes):
        super().__init__(classes)
        self.norm = nn.BatchNorm1d(3, track_running_stats=False)
    def forward(self, x): return self.last(self.norm(x.mean((2, 3))))
class Extra(Net):
    extra = {"calls": 3}
    def get_extra_state(self): return self.extra
    def set_extra_state(self, state): pass
class ExtraText(Extra):
    extra = "v1"
class ExtraTensor(Extra):
    extra = torch.ones(2)
class Buffered(Net):
    def __init__(self, classes, kind):
        super().__init__(classes)
        self.register_buffer("kept", torch.zeros(2, dtype=torch.complex128) if kind == "complex" else
                             torch.eye(2).to_sparse())
class Sure(Net):
    def forward(self, x): return super().forward(x).softmax(1)
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_the_user.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "of_the_user", raising=False)


def build(factory: str, size: tuple[int, ...] = (4, 4), **args: Any) -> nn.Module:
    name = factory if ":" in factory else f"of_the_user:{factory}"
    return registry.build_model(
        ModelConfig(name=name, args=args), classes=5, shape=Shape(channels=3, size=size), seed=0
    )


@pytest.mark.parametrize("factory", ["plain", "without_shape", "anything", "Net", "Eighths"])
def test_a_factory_is_told_what_it_asks_for(factory: str) -> None:
    assert build(factory)(torch.zeros(8, 3, 4, 4)).shape == (8, 5)


def test_its_arguments_come_from_the_config() -> None:
    assert build("plain", hidden=9)[1].out_features == 9  # type: ignore[index]


def test_it_may_take_clips() -> None:
    assert build("frames", size=(2, 4, 4))(torch.zeros(2, 3, 2, 4, 4)).shape == (2, 5)


def test_its_first_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(3)
    first = build("without_shape").state_dict()
    torch.manual_seed(4)
    second = build("without_shape").state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_network_that_comes_in_evaluation_mode_is_trained_in_training_mode() -> None:
    net = build("trained_before")
    assert all(module.training for module in net.modules())
    assert custom.eval_mode_notes(net) == ()


def notes(factory: str) -> tuple[str, ...]:
    """What is said of a network whose outputs may be probabilities."""
    net = build(factory)
    return custom.softmax_notes(ModelConfig(name=f"of_the_user:{factory}"), net, Shape(channels=3, size=(4, 4)))


def test_a_network_that_ends_in_a_softmax_is_named_with_its_file_and_line() -> None:
    (note,) = notes("Sure")
    line = next(number for number, text in enumerate(CODE.splitlines(), 1) if text.startswith("class Sure"))
    assert "of_the_user.py, line " + str(line) in note
    assert "ends in a softmax (class Sure, " in note
    assert notes("probabilities")[0].startswith(
        "the network of of_the_user:probabilities ends in a softmax (class Sequential):"
    )


@pytest.mark.parametrize("factory", ["plain", "trained_before", "frozen_in_part"])
def test_scores_are_not_taken_for_probabilities(factory: str) -> None:
    net = build(factory)
    modes = [module.training for module in net.modules()]
    assert custom.softmax_notes(ModelConfig(name="mine"), net, Shape(channels=3, size=(4, 4))) == ()
    assert [module.training for module in net.modules()] == modes


@pytest.mark.parametrize(
    ("factory", "still"), [("frozen_in_part", "1 of the network's modules (0)"), ("new_head", "2 of the network's")]
)
def test_parts_in_evaluation_mode_stay_so_and_a_note_says_it(factory: str, still: str) -> None:
    net = build(factory)
    assert not net[0].training  # type: ignore[index]
    assert custom.eval_mode_notes(net)[0].startswith(still)


@pytest.mark.parametrize(
    ("factory", "problem", "fix"),
    [
        ("Masked", "the buffer mask holds -inf", "persistent=False"),
        ("undefined", "the weight last.bias holds nan", "first numbers"),
    ],
)
def test_what_is_not_finite_before_the_first_step_is_refused(factory: str, problem: str, fix: str) -> None:
    with pytest.raises(Failure, match=problem) as caught:
        custom.refuse_nonfinite_weights(ModelConfig(name=f"of_the_user:{factory}"), build(factory))
    assert caught.value.code == 64
    assert fix in caught.value.fix


@pytest.mark.parametrize("factory", ["Squeezed", "SqueezedEarly", "Unbatched"])
def test_a_network_that_drops_the_axis_of_a_single_sample_is_refused(factory: str) -> None:
    """Two samples and thirty-two pass: `train predict`, and the last batch of an evaluation, may have one."""
    with pytest.raises(Failure, match="for 1 sample it gives") as caught:
        build(factory)
    assert caught.value.code == 64
    assert "squeeze" in caught.value.fix


def test_batchnorm_without_statistics_cannot_evaluate_a_single_sample() -> None:
    with pytest.raises(Failure, match="more than 1 value per channel") as caught:
        build("WithoutStatistics")
    assert "one alone" in caught.value.what


@pytest.mark.parametrize(
    ("factory", "args", "content"),
    [
        ("Extra", {}, "a dict in _extra_state"),
        ("ExtraText", {}, "a str in _extra_state"),
        ("Buffered", {"kind": "complex"}, "complex128"),
        ("Buffered", {"kind": "sparse"}, "sparse_coo"),
    ],
)
def test_state_that_no_checkpoint_holds_is_refused(factory: str, args: dict[str, Any], content: str) -> None:
    with pytest.raises(Failure, match="whose state no checkpoint can hold") as caught:
        build(factory, **args)
    assert caught.value.code == 64
    assert content in str(caught.value.found)


def test_extra_state_that_is_a_tensor_is_kept() -> None:
    assert build("ExtraTensor").state_dict()["_extra_state"].tolist() == [1, 1]


@pytest.mark.parametrize("args", [{"persistent": False}, {"of": -1e9}, {"of": 1}], ids=str)
def test_a_mask_that_no_checkpoint_holds_or_that_is_finite_is_not(args: dict[str, Any]) -> None:
    custom.refuse_nonfinite_weights(ModelConfig(name="of_the_user:Masked"), build("Masked", **args))


@pytest.mark.parametrize(
    ("factory", "args", "problem"),
    [
        ("no_such_module_here:make", {}, "no module no_such_module_here"),
        ("of_the_user:plian", {}, "plain"),
        ("MOST", {}, "int"),
        ("plain", {"hiden": 3}, "hiden"),
        ("plain", {"classes": 3}, "model.args: classes"),
        ("plain", {"shape": 3, "classes": 2}, "model.args: classes, shape"),
        ("no_classes", {}, "classes"),
        ("needs_more", {}, "depth"),
        ("positional", {}, "classes"),
        ("nothing", {}, "it gives a NoneType"),
        ("a_function", {}, "it gives a function"),
        ("a_class", {}, "it gives a type"),
        ("fails", {}, "KeyError: 'oh'"),
        ("leaves", {}, "SystemExit"),
        ("one_more", {}, "for 2 samples it gives [2, 6]"),
        ("pairs", {}, "for 2 samples it gives a tuple"),
        ("too_narrow", {}, "mat1 and mat2"),
        ("no_weights", {}, "none of its weights can be trained"),
        ("idle", {}, "does not depend on never.weight, never.bias"),
        ("plain", {"hidden": "nine"}, "TypeError"),
        ("Two", {}, "for 2 samples it gives a tuple while it trains"),
        ("Mistyped", {}, "has no attribute 'lost'"),
    ],
    ids=str,
)
def test_what_is_no_network_for_the_data_is_refused(factory: str, args: dict[str, Any], problem: str) -> None:
    with pytest.raises(Failure) as caught:
        build(factory, **args)
    assert caught.value.code == 64
    assert problem in str(caught.value)


SHAPE = Shape(channels=3, size=(4, 4))


class WithScores(nn.Module):
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
    ("give", "problem"),
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
def test_other_outputs_are_named(give: Callable[[Tensor], Any], problem: str) -> None:
    assert problem in str(custom.eval_forward_error(WithScores(give), SHAPE, 5))


def test_weights_without_a_part_in_the_output_are_named() -> None:
    net = WithScores()
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
    net = WithScores()
    net.norm.eval()
    net.register_buffer("count", torch.zeros(1))
    net.register_forward_hook(lambda *_: net.count.add_(1) and None)
    custom.eval_forward_error(net, SHAPE, 5)
    assert (net.training, net.norm.training, net.count.item(), net.layer.weight.grad) == (True, False, 0, None)


class WithFirstBatch(nn.Module):
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
    net = WithFirstBatch()
    mean = net.mean
    assert trying(net, SHAPE, 5) is None
    assert net.mean is mean
    assert net.mean.item() == 1


def test_a_trial_of_training_leaves_nothing_that_a_first_batch_would() -> None:
    net = WithFirstBatch()
    weight = net.layer.weight.clone()
    assert custom.train_forward_error(net, SHAPE, 5) is None
    assert (net.calls, net.scale.item()) == (0, 1)
    assert torch.equal(net.layer.weight, weight)


class Silent(WithScores):
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
    net = WithScores()
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
