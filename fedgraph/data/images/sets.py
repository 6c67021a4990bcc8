"""The named image sets: their facts, and the files from which they are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedgraph.data.images.image_files import CIFAR10_NAMES, CIFAR100_NAMES, IDX_NAMES, MOSAIC_NAMES
from fedgraph.support.catalogue import CatalogueEntry, DataFile

SetName = Literal["digits", "mnist", "fashion-mnist", "cifar10", "cifar100"]


@dataclass(frozen=True)
class ImageSet:
    """Fixed facts of a set; ``mean`` and ``deviation`` are per channel, of training pixels in [0, 1]."""

    title: str
    num_train: int
    num_test: int
    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    largest_pixel: int = 255


_NUMERALS = tuple("0123456789")
_CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR100 = tuple(
    """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
    flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
    motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
    poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
    squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
    wardrobe whale willow_tree wolf woman worm""".split()  # noqa: SIM905
)
SETS: dict[SetName, ImageSet] = {
    "digits": ImageSet("digits", 1438, 359, (1, 8, 8), _NUMERALS, (0.3053,), (0.3760,), largest_pixel=16),
    "mnist": ImageSet("MNIST", 60_000, 10_000, (1, 28, 28), _NUMERALS, (0.1307,), (0.3081,)),
    "fashion-mnist": ImageSet("Fashion-MNIST", 60_000, 10_000, (1, 28, 28), _CLOTHES, (0.2860,), (0.3530,)),
    "cifar10": ImageSet(
        "CIFAR-10", 50_000, 10_000, (3, 32, 32), _CIFAR10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    ),
    "cifar100": ImageSet(
        "CIFAR-100", 50_000, 10_000, (3, 32, 32), _CIFAR100, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    ),
}


# SHA-256 of the unpacked idx files, in the order of IDX_NAMES.
IDX_CONTENT: dict[SetName, tuple[str, ...]] = {
    "mnist": (
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    "fashion-mnist": (
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
}


def _idx_alternatives(name: SetName, url: str, packed: Sequence[tuple[str, int]]) -> tuple[tuple[DataFile, ...], ...]:
    """Return the four files as published (SHA-256 and bytes of each), and unpacked."""
    folder, published = Path(name), list(zip(IDX_NAMES, packed, strict=True))
    return (
        tuple(DataFile(folder / f"{file}.gz", f"{url}{file}.gz", True, *facts) for file, facts in published),
        tuple(
            DataFile(folder / file, f"{url}{file}.gz", sha256=content)
            for file, content in zip(IDX_NAMES, IDX_CONTENT[name], strict=True)
        ),
    )


def _cifar_alternatives(
    name: SetName, archive: str, batches: str, members: Sequence[str], sha256: str, size: int
) -> tuple[tuple[DataFile, ...], ...]:
    """Return the archive as published, and the folder that it contains."""
    url = f"https://www.cs.toronto.edu/~kriz/{archive}"
    return (
        (DataFile(Path(name) / archive, url, True, sha256, size),),
        tuple(DataFile(Path(name) / batches / member, url) for member in members),
    )


IMAGES: tuple[CatalogueEntry, ...] = (
    CatalogueEntry(
        name="digits",
        title="Optical recognition of handwritten digits (UCI)",
        licence="CC BY 4.0",
        size="comes with scikit-learn",
        notes="1,797 images 8x8, 10 classes; nothing to fetch",
    ),
    CatalogueEntry(
        name="mnist",
        title="MNIST handwritten digits",
        licence="CC BY-SA 3.0 (as commonly stated)",
        size="12 MB",
        alternatives=_idx_alternatives(
            "mnist",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            (
                ("440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9_912_422),
                ("3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28_881),
                ("8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1_648_877),
                ("f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4_542),
            ),
        ),
        notes="70,000 images 28x28, 10 classes",
    ),
    CatalogueEntry(
        name="fashion-mnist",
        title="Fashion-MNIST clothing",
        licence="MIT (Zalando SE)",
        size="31 MB",
        alternatives=_idx_alternatives(
            "fashion-mnist",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            (
                ("3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", 26_421_880),
                ("a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", 29_515),
                ("346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073", 4_422_102),
                ("67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", 5_148),
            ),
        ),
        notes="70,000 images 28x28, 10 classes",
    ),
    CatalogueEntry(
        name="cifar10",
        title="CIFAR-10 photographs",
        licence="none stated; free for research with citation (Krizhevsky 2009)",
        size="170 MB",
        alternatives=(
            *_cifar_alternatives(
                "cifar10",
                "cifar-10-python.tar.gz",
                "cifar-10-batches-py",
                CIFAR10_NAMES,
                "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
                170_498_071,
            ),
            tuple(DataFile(Path("cifar10") / name, "") for name in MOSAIC_NAMES),
        ),
        notes="60,000 images 32x32 RGB, 10 classes; lossless mosaics of 5000 images with labels.npz are read too",
    ),
    CatalogueEntry(
        name="cifar100",
        title="CIFAR-100 photographs",
        licence="none stated; free for research with citation (Krizhevsky 2009)",
        size="169 MB",
        alternatives=_cifar_alternatives(
            "cifar100",
            "cifar-100-python.tar.gz",
            "cifar-100-python",
            CIFAR100_NAMES,
            "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
            169_001_437,
        ),
        notes="60,000 images 32x32 RGB, 100 fine classes",
    ),
)


def catalogue_entry(name: SetName) -> CatalogueEntry:
    """Return the entry of one set."""
    return next(entry for entry in IMAGES if entry.name == name)
