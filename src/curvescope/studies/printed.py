"""What the papers print: their figures and tables, and what is to be said where no entry has all.

A figure whose parts differ in what they show has a line for each part.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Item:
    """A figure or table: its number, what it shows, and what of it is not computed, and why."""

    kind: str  # "fig." or "table"
    number: str
    about: str
    remark: str = ""


@dataclass(frozen=True)
class Paper:
    """A paper and all its figures and tables."""

    key: str
    title: str
    items: tuple[Item, ...]


def _items(kind: str, text: str) -> tuple[Item, ...]:
    """From lines ``number | about | remark``; a line that starts with a bar goes on."""
    joined = re.sub(r"\n\s*\|", " |", text.strip())
    rows = [[part.strip() for part in line.split("|")] for line in joined.splitlines()]
    return tuple(Item(kind, *row) for row in rows)


DH = Paper(
    "DH",
    "DH: Dissecting Hessian",
    _items(
        "fig.",
        """
        1a | overlap of fc1:LeNet5 and of conv11:ResNet18-W64
           | ResNet18 with 64 channels at the scale of the paper only
        1b | singular values of the first eigenvectors of fc1:LeNet5
        2a | eigenvalues of the layers of F-200², true and Kronecker
        2b | their eigenspaces
        2c | eigenvalues of the full Hessian of F-200²
        2d | its eigenspace
        3 | correspondence matrices of fc1:LeNet5
        4 | spectra of E[M] and of the layer's Hessian in three situations
           | DH does not name the layer; fc1 and fc2 of F-200²
        5a | overlap of fc1 of LeNet5 with 80, 100, 120, 150 outputs
           | 100 outputs, which lie between, are not trained
        5b | overlap of ResNet18 with three widths | the three widths at the scale of the paper only
        5c | overlap of VGG11 with three widths | the three widths at the scale of the paper only
        6 | first singular value over the Frobenius norm, LeNet5
        7 | posterior variance by algorithm, T-200²₁₀
        8a | eigenvalues of the full Hessian of F-200²
        8b | its eigenspace
        8c | the same, F-200⁴
        8d | its eigenspace
        8e | the same, F-600⁴
        8f | its eigenspace
        8g | the same, F-600⁸
        8h | its eigenspace
        9 | overlap of LeNet5 trained with different hyper-parameters
        10 | overlap of variants of VGG11
        11 | overlap of variants of ResNet18
        12 | layers with an early low peak
           | further layers than fc2:F-200² come with the scale of the paper
        13 | layers with a delayed peak
        14 | correspondence matrices of fc1:LeNet5
        15 | of fc2
        16 | of conv1
        17 | of conv2
        18 | eigenvalues of E[xxᵀ] along training
        19 | eigenvalues of E[M] along training
        20 | logit gradients at initialization, t-SNE
        21 | logit gradients at the minimum, t-SNE
        22 | first singular value over the Frobenius norm, i up to 200
        23 | overlap of the last layer
        24 | fc2:F-200²: overlap, spectrum, correspondence
        25 | conv5:VGG11-W200: the same
           | 200 channels at the scale of the paper, 32 at the small one
        26 | conv2:VGG11-W200: the same
           | 200 channels at the scale of the paper, 32 at the small one
        27 | LeNet5-BN: spectrum of E[xxᵀ], correspondence
        28 | LeNet5-BN: overlap
        29 | LeNet5-BN: true and Kronecker
        30 | posterior variance, T-200²₁₀ | without ITER(D), which is not computed for this network
        """,
    )
    + _items(
        "table",
        """
        1 | PAC-Bayes bounds | the rows of table 9 with fewer digits
        2 | data sets
        3 | structure of F-200²
        4 | structure of LeNet5
        5 | structure of LeNet5-BN
        6 | E[xxᵀ] of fully connected layers
           | without LeNet5-(fc1-100); DH prints VGG11-W64 twice for CIFAR-10
        7 | E[xxᵀ] of convolutions | without LeNet5-(fc1-100)
        8 | E[xxᵀ] with batch norm
        9 | all PAC-Bayes bounds | 20 of 36 rows; the rows PREV are those of Dziugaite and Roy
        10 | overlap of E[M]'s top eigenspace with R(S)∖{S·1}
        """,
    ),
)
DH1 = Paper(
    "DH1",
    "DH, first version",
    _items(
        "fig.",
        """
        1 | overlap and singular values of fc1:LeNet5
        2 | layers of F-200², true and Kronecker
        3 | correspondence matrices of fc1:LeNet5
        4 | spectra of E[M] and of the layer's Hessian
        5 | overlap of variants of LeNet5 | LeNet5-(conv2-25) and 100 outputs are not trained
        6 | first singular value over the Frobenius norm
        7 | spectra of E[xxᵀ] of several networks
        8 | overlap of LeNet5 trained with different hyper-parameters
        9 | overlap of F-200² | fc2 alone is drawn
        10 | correspondence of fc1:LeNet5
        11 | of fc2
        12 | of conv1
        13 | of conv2
        14 | correspondence with E[xxᵀ] of conv1:VGG11 | VGG11 32 channels wide at the small scale
        15 | of conv2:VGG11 | VGG11 32 channels wide at the small scale
        16 | of conv3:VGG11 | VGG11 32 channels wide at the small scale
        17 | eigenvalues of E[xxᵀ] along training
        18 | eigenvalues of E[M] along training
        19 | spectra of E[M] and of the layer's Hessian
        20 | logit gradients, t-SNE
           | of fc1:LeNet5 there, of fc1:T-200² here and in the later version
        21 | overlap of LeNet5
        22 | fc2:LeNet5: overlap, spectrum, correspondence
        23 | LeNet5-BN: spectrum of E[xxᵀ], correspondence
        24 | LeNet5-BN: overlap
        25 | LeNet5-BN: true and Kronecker
        26 | posterior variance, T-200²₁₀
        """,
    )
    + _items(
        "table",
        """
        1 | PAC-Bayes bounds | the later version's numbers are compared
        2 | data sets
        3 | structure of F-200²
        4 | structure of LeNet5
        5 | structure of LeNet5-BN
        6 | ‖E[x]E[x]ᵀ‖/‖Σ‖, layer by layer
           | 3 of 12 networks, and the first layers of all; the others have no finished weights
        7 | inner product of Ê[x] and the first eigenvector | 3 of 12 networks
        8 | both with batch norm | LeNet5-BN; F-200²-BN in `dissecting-hessian/autocorrelation`
        9 | all PAC-Bayes bounds | the later version's numbers are compared
        """,
    ),
)
TR = Paper(
    "TR",
    "TR: Traces of class/cross-class structure",
    _items(
        "fig.",
        """
        1 | a typical spectrum with C = 4, a sketch | measured here with four digits
        2 | inheritance of class means, a diagram | its products are measured as cosines
        3 | Hessian of VGG11 on several data sets, train and test
           | MNIST, Fashion-MNIST and CIFAR-10; the text does not name the others
        4 | Hessian, G and E, VGG11 on MNIST
        5 | G and its knockouts, VGG11 on CIFAR-10
        6 | G along training and with sample size | the paper names neither data nor sizes
        7 | features with and without class means | without CIFAR-10, the third row
        8 | scree plots of features | without CIFAR-10
        9 | errors with and without class and cross means | without CIFAR-10
        10 | scree plots of errors | without CIFAR-10
        11 | G, KFAC and CFAC of layer 8, MNIST
        12 | G, KFAC and CFAC of all layers | without CIFAR-10
        13 | weights with and without W_class | without CIFAR-10
        14 | fig. 3 without deflation | MNIST, Fashion-MNIST and CIFAR-10
        15 | estimators on random matrices
        16 | tails of the test E
        17 | deflation, ResNet18 on MNIST | ResNet18 of 8 channels at the small scale
        """,
    )
    + _items("table", "1 | conclusions of the knockouts, in words | each cell as a number"),
)
FF = Paper(
    "FF",
    "FF: Flatness is a false friend",
    _items(
        "fig.",
        """
        1a | a feed-forward network | a sketch without data
        1b | spectrum of VGG-16 where the mass at zero splits
        1c | spectrum of VGG-16 where it does not
        1d | mass at zero along training
        2 | spectra of logistic regression, three weight decays
        3 | spectra of a perceptron, error and weight norm
        4 | the same of a CNN on CIFAR-100
        5 | the same of PreResNet-164
        6 | the same of WideResNet-28x10, train mode
        7 | the same, eval mode
        8 | SGD and Gadam, VGG-16 on CIFAR-100, train mode
        9 | the same on CIFAR-10
        10 | the same on CIFAR-100, eval mode
        11 | mass at zero of VGG-16 and PreResNet-110 along training
           | VGG-16 on CIFAR-10 instead of CIFAR-100
        12 | mass at zero of VGG-16, G and H | on CIFAR-10 instead of CIFAR-100
        13 | mass at zero of G, PreResNet-110
        14 | mass at zero of H, PreResNet-110
        """,
    ),
)
PP = Paper(
    "PP",
    "PP: A practical PAC-Bayes bound",
    _items(
        "fig.",
        """
        1 | spectra of WideResNet-28x10, eval mode, error and norm
        2 | traces of H, G, H², G² by sub-sampling | PP name neither network nor data
        """,
    )
    + _items(
        "table",
        """
        1 | perceptron on MNIST
        2 | CNN on CIFAR-100
        3 | the caption of tables 1 and 2
        4 | PreResNet-164 on CIFAR-100
        5 | WideResNet-28x10 on CIFAR-100
        6 | the caption of tables 4 and 5
        7 | trace penalty, WideResNet-28x10 on CIFAR-100 | on VGG16-BN and CIFAR-10
        8 | trace penalty, WideResNet-28x10 on ImageNet-32
           | on CIFAR-10: ImageNet-32 is not among the data sets here
        9 | the caption of tables 7 and 8
        """,
    ),
)
PAPERS = (DH, DH1, TR, FF, PP)
