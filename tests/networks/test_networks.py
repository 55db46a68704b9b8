"""The networks of the papers: their layers, their sizes, and names that are none."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from curvescope.errors import CurvescopeError
from curvescope.networks import network
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.problem import Problem

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def layers(model: nn.Module) -> list[str]:
    """The layers with weights, in order, without the batch norms."""
    return [name for name, m in model.named_children() if isinstance(m, (nn.Linear, nn.Conv2d))]


@pytest.mark.parametrize(
    ("name", "inputs", "classes", "count"),
    [
        ("logistic", MNIST, 10, 7_850),  # FF §4
        ("F-100", MNIST, 10, 79_510),  # FF prints 9,960, which is 784-10-100-10
        ("F-200^2", MNIST, 10, 199_210),  # DH table 3
        ("F-200^2-BN", MNIST, 10, 199_210),  # no learnable parameters in the batch norms
        ("F-200^2-BN-ReLU", MNIST, 10, 199_210 + 4 * 200),  # scale and shift of two norms
        ("F-600^2-100", MNIST, 10, 785 * 600 + 601 * 600 + 601 * 100 + 101 * 10),
        ("LeNet5", CIFAR, 10, 62_006),  # DH table 4
        ("LeNet5-BN", CIFAR, 10, 62_006),
        ("VGG11", CIFAR, 10, 9_225_610),  # torchvision's convolutions (9,220,480) and 512·10 + 10
        ("VGG11-4096^2", CIFAR, 10, 28_144_010),  # TR: 28 million
        ("VGG16", CIFAR, 10, 15_245_130),  # FF: 1.6e7
        ("VGG16-BN", CIFAR, 10, 15_245_130 + 2 * (4224 + 1024)),
        ("ResNet18-BN", CIFAR, 10, 11_173_962),  # the usual ResNet18 for CIFAR
        ("PreResNet-164", CIFAR, 100, 1_726_388),  # FF §4
        ("All-CNN-C", CIFAR, 100, 1_387_108),  # FF §4
        ("WideResNet-28x10", CIFAR, 100, 36_546_980),  # FF §4
    ],
)
def test_parameter_counts(name: str, inputs: tuple, classes: int, count: int) -> None:
    assert parameters(network(name, inputs, classes)) == count


RESNET18 = [
    *("conv1", "conv2", "conv3", "conv4", "conv5"),
    *("conv6", "conv7", "sc-conv1", "conv8", "conv9"),
    *("conv10", "conv11", "sc-conv2", "conv12", "conv13"),
    *("conv14", "conv15", "sc-conv3", "conv16", "conv17", "fc1"),
]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("F-20^2", ["fc1", "fc2", "fc3"]),
        ("LeNet5", ["conv1", "conv2", "fc1", "fc2", "fc3"]),
        ("VGG11-W8", [*(f"conv{i}" for i in range(1, 9)), "fc1"]),
        ("VGG16", [*(f"conv{i}" for i in range(1, 14)), "fc1", "fc2", "fc3"]),
        ("ResNet18-W8", RESNET18),
        ("All-CNN-C", [f"conv{i}" for i in range(1, 10)]),
    ],
)
def test_layers_have_the_papers_names_in_order(name: str, expected: list[str]) -> None:
    assert layers(network(name, CIFAR, 10)) == expected


def test_depth_counts_the_layers_of_the_main_road() -> None:
    for name, depth in (("PreResNet-110", 110), ("PreResNet-164", 164), ("WideResNet-28x1", 26)):
        main = [layer for layer in layers(network(name, CIFAR, 10)) if not layer.startswith("sc-")]
        assert len(main) == depth, name  # a wide network's 28 counts two of its shortcuts


def test_widths_come_from_the_name() -> None:
    def outputs(name: str, layer: str) -> int:
        return network(name, CIFAR, 10).get_submodule(layer).weight.shape[0]

    assert outputs("LeNet5-(fc1-80)", "fc1") == 80
    assert outputs("LeNet5-(conv2-25)", "conv2") == 25
    assert outputs("LeNet5-(conv2-25)-(fc2-30)", "fc2") == 30
    for i in range(1, 9):
        assert outputs("VGG11-W48", f"conv{i}") == 48
    for layer in RESNET18[:-1]:
        assert outputs("ResNet18-W6", layer) == 6
    assert outputs("F-600^2-100", "fc3") == 100
    assert network("VGG11-W48", CIFAR, 10).get_submodule("fc1").weight.shape == (10, 48)


def test_superscripts_are_read_as_powers() -> None:
    assert (
        network("F-20²-10", 4, 2).state_dict().keys()
        == network("F-20^2-10", 4, 2).state_dict().keys()
    )
    assert network("F-3¹²", 4, 2).spec.name == "F-3^12"


SMALL = [
    ("F-5^2", (1, 4, 4)),
    ("F-5^2-BN", (1, 4, 4)),
    ("F-5^2-BN-ReLU", (1, 4, 4)),
    ("logistic", (7,)),
    ("LeNet5-(fc1-9)-(fc2-8)", (1, 28, 28)),
    ("LeNet5-BN", CIFAR),
    ("VGG11-W4", MNIST),
    ("VGG11-W4-12^2-BN", CIFAR),
    ("ResNet18-W4", (3, 16, 16)),
    ("ResNet18-W4-BN", (3, 16, 16)),
    ("PreResNet-11", (3, 12, 12)),
    ("WideResNet-10x1", (3, 12, 12)),
    ("All-CNN-C", (3, 9, 9)),
]


@pytest.mark.parametrize(("name", "inputs"), SMALL, ids=[name for name, _ in SMALL])
def test_every_family_gives_logits_and_curvature(name: str, inputs: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    model = network(name, inputs, 5, generator=generator).double().eval()
    X = torch.randn(3, *inputs, generator=generator, dtype=torch.float64)
    problem = Problem(model, (X, torch.tensor([0, 1, 4])))
    assert model(X).shape == (3, 5)
    v = torch.randn(problem.params.size, generator=generator, dtype=torch.float64)
    product = GaussNewton(problem) @ v
    assert product.isfinite().all()
    assert v @ product > 0


def test_dh_batch_norm_stands_after_the_relu_and_learns_nothing() -> None:
    names = [name for name, _ in network("LeNet5-BN", CIFAR, 10).named_children()]
    assert names == [  # DH table 5
        *("conv1", "relu-conv1", "bn-conv1", "maxpool1"),
        *("conv2", "relu-conv2", "bn-conv2", "maxpool2", "flatten"),
        *("fc1", "relu-fc1", "bn-fc1", "fc2", "relu-fc2", "bn-fc2", "fc3"),
    ]
    hidden = network("F-20^2-BN", MNIST, 10).train()
    X = torch.randn(64, *MNIST, generator=torch.Generator().manual_seed(0))
    normalized = hidden[:4](X)  # flatten, fc1, relu, bn
    torch.testing.assert_close(normalized.mean(0), torch.zeros(20), atol=1e-5, rtol=0)


def test_the_usual_batch_norm_of_a_perceptron_stands_before_the_relu() -> None:
    hidden = network("F-20^2-BN-ReLU", MNIST, 10).train()
    assert [name for name, _ in hidden.named_children()] == [
        *("flatten", "fc1", "bn-fc1", "relu-fc1", "fc2", "bn-fc2", "relu-fc2", "fc3"),
    ]
    X = torch.randn(64, *MNIST, generator=torch.Generator().manual_seed(0))
    normalized = hidden[:3](X)  # flatten, fc1, bn
    torch.testing.assert_close(normalized.mean(0), torch.zeros(20), atol=1e-5, rtol=0)
    torch.testing.assert_close(normalized.var(0, correction=0), torch.ones(20), atol=1e-3, rtol=0)
    assert hidden[2].affine


def test_the_residual_networks_add_their_shortcuts() -> None:
    """With all weights of the main roads at zero, only the shortcuts are left."""
    model = network("ResNet18-W4", CIFAR, 3)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.startswith("conv") and name not in ("conv1.weight", "conv1.bias"):
                p.zero_()
    X = torch.randn(2, *CIFAR, generator=torch.Generator().manual_seed(0))
    x = model.get_submodule("conv1")(X).relu()
    for i in (1, 2, 3):
        x = model.get_submodule(f"sc-conv{i}")(x).relu()
    torch.testing.assert_close(model(X), model.get_submodule("fc1")(x.mean((2, 3))))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("F-200^x", r"network\('F-200\^x'\): such a name has the form F-<width>\^<layers>"),
        ("F-", "has the form F-<width>"),
        ("F-0", "every width and depth must be an integer of at least 1, got 0"),
        ("F-200^0", "every width and depth must be"),
        ("F-2^1000000", "more than 1000 layers"),
        ("LeNet5-(fc3-80)", r"has the form LeNet5-\(<conv1, conv2, fc1 or fc2>-<width>\)"),
        ("LeNet", "no network has this name; examples are F-200"),
        ("VGG13", "has the form VGG<11 or 16>"),
        ("ResNet50", "has the form ResNet18-W<width>"),
        ("PreResNet-100", r"the depth must be 9n \+ 2, as 110 and 164 are, got 100"),
        ("WideResNet-27x10", r"the depth must be 6n \+ 4, as 28 is, got 27"),
        ("WideResNet-28x0", "at least 1, got 0"),
        ("transformer", "no network has this name"),
    ],
)
def test_a_wrong_name_is_one_sentence(name: str, message: str) -> None:
    with pytest.raises(CurvescopeError, match=message):
        network(name, CIFAR, 10)


@pytest.mark.parametrize(
    ("name", "inputs", "classes", "message"),
    [
        ("LeNet5", 784, 10, r"needs images, inputs=\(channels, height, width\), got \(784,\)"),
        ("LeNet5", (1, 8, 8), 10, "needs images of at least 16×16 pixels, got 8×8"),
        ("VGG11", (3, 16, 16), 10, "needs images of at least 28×28 pixels"),
        ("All-CNN-C", (3, 8, 8), 10, "needs images of at least 9×9 pixels"),
        ("ResNet18-W8", (28, 28), 10, "needs images"),
        ("F-200^2", (1, 0, 28), 10, "each side of inputs must be an integer of at least 1, got 0"),
        ("F-200^2", MNIST, 0, "classes must be an integer of at least 1, got 0"),
    ],
)
def test_inputs_that_do_not_fit(name: str, inputs: object, classes: int, message: str) -> None:
    with pytest.raises(CurvescopeError, match=message):
        network(name, inputs, classes)
