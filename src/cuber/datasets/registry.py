"""The seven datasets: files, mirrors, checksums, licenses, citations.

Origin of the md5: CIFAR's archives and Fashion-MNIST's files from their home pages; MNIST's, SVHN's and CIFAR's python
batches from torchvision; unpacked idx files and CIFAR-10's binary batches computed from copies with the official
content; notMNIST, which has no official one, as recorded by several independent projects. CIFAR-100's binary batches
and miniImageNet, which was never published as files, have none.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from cuber.datasets.array_readers import cifar_layouts, idx_layouts, svhn_layouts
from cuber.datasets.image_readers import miniimagenet_layouts, notmnist_layouts
from cuber.datasets.source import Download, Location, Source
from cuber.errors import unknown

_DIGITS = tuple("0123456789")
_CIFAR_100_CLASSES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""
_MINI_IMAGENET_CLASSES = """
n01532829 n01558993 n01704323 n01749939 n01770081 n01843383 n01855672 n01910747 n01930112 n01981276 n02074367 n02089867
n02091244 n02091831 n02099601 n02101006 n02105505 n02108089 n02108551 n02108915 n02110063 n02110341 n02111277 n02113712
n02114548 n02116738 n02120079 n02129165 n02138441 n02165456 n02174001 n02219486 n02443484 n02457408 n02606052 n02687172
n02747177 n02795169 n02823428 n02871525 n02950826 n02966193 n02971356 n02981792 n03017168 n03047690 n03062245 n03075370
n03127925 n03146219 n03207743 n03220513 n03272010 n03337140 n03347037 n03400231 n03417042 n03476684 n03527444 n03535780
n03544143 n03584254 n03676483 n03770439 n03773504 n03775546 n03838899 n03854065 n03888605 n03908618 n03924679 n03980874
n03998194 n04067472 n04146614 n04149813 n04243546 n04251144 n04258138 n04275548 n04296562 n04389033 n04418357 n04435653
n04443257 n04509417 n04515003 n04522168 n04596742 n04604644 n04612504 n06794110 n07584110 n07613480 n07697537 n07747607
n09246464 n09256479 n13054560 n13133613
"""
"""WordNet identifiers, which are the names of the class folders."""

# fmt: off
_MNIST_FILES = (  # name, size of the .gz file, md5 of the .gz file, md5 of its content
    ("train-images-idx3-ubyte", 9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
    ("train-labels-idx1-ubyte", 28_881, "d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
    ("t10k-images-idx3-ubyte", 1_648_877, "9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
    ("t10k-labels-idx1-ubyte", 4_542, "ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
)
_FASHION_FILES = (
    ("train-images-idx3-ubyte", 26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d", "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
    ("train-labels-idx1-ubyte", 29_515, "25c81989df183df01b3e8a0aad5dffbe", "9018921c3c673c538a1fc5bad174d6f9"),
    ("t10k-images-idx3-ubyte", 4_422_102, "bef4ecab320f06d8554ea6380940ec79", "8181f5470baa50b63fa0f6fddb340f0a"),
    ("t10k-labels-idx1-ubyte", 5_148, "bb300cfdad3c16e7a12a480ee83cd310", "15d484375f8d13e6eb1aabb0c3f46965"),
)
_MNIST_MIRRORS = "https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"
_FASHION_MIRRORS = ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",)
_CIFAR_PAGE = "https://www.cs.toronto.edu/~kriz/"
_SVHN_PAGE = "http://ufldl.stanford.edu/housenumbers/"


def _idx_downloads(folder: str, mirrors: Iterable[str], files: Iterable[tuple[str, int, str, str]]) -> dict[str, Any]:
    downloads = tuple(
        Download(f"{folder}/{name}.gz", tuple(f"{mirror}{name}.gz" for mirror in mirrors), size, md5)
        for name, size, md5, _ in files
    )
    return {"downloads": downloads, "contents": {name: md5 for name, _, _, md5 in files}}


MNIST = Source(
    name="mnist", license="CC BY-SA 3.0",
    citation="LeCun, Bottou, Bengio and Haffner, Gradient-based learning applied to document recognition, 1998",
    classes=_DIGITS, train=60_000, test=10_000, shape=(28, 28), mean=(0.1307,), std=(0.3081,),
    folders=("MNIST/raw", "MNIST", "mnist/raw", "mnist"),
    layouts=idx_layouts,
    **_idx_downloads("MNIST/raw", _MNIST_MIRRORS, _MNIST_FILES),  # the home page no longer offers the files
)
FASHION_MNIST = replace(
    MNIST, name="fashion-mnist", license="MIT",
    citation="Xiao, Rasul and Vollgraf, Fashion-MNIST: a Novel Image Dataset for Benchmarking, 2017",
    classes=(
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    ),
    mean=(0.2860,), std=(0.3530,),
    folders=(
        "FashionMNIST/raw", "FashionMNIST", "fashion-mnist/raw", "fashion-mnist", "fashion_mnist/raw", "fashion_mnist",
    ),
    **_idx_downloads("FashionMNIST/raw", _FASHION_MIRRORS, _FASHION_FILES),
)
CIFAR_10 = Source(
    name="cifar-10", license="none stated; cite the report",
    citation="Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    train=50_000, test=10_000, shape=(32, 32, 3),
    # The protocols use the statistics of CIFAR-10 for CIFAR-100 too.
    mean=(125.3 / 255, 123.0 / 255, 113.9 / 255), std=(63.0 / 255, 62.1 / 255, 66.7 / 255),
    folders=("", "CIFAR10", "cifar10", "CIFAR-10", "cifar-10"), layouts=cifar_layouts,
    downloads=(
        Download("cifar-10-python.tar.gz", (f"{_CIFAR_PAGE}cifar-10-python.tar.gz",), 170_498_071,
                 "c58f30108f718f92721af3b95e74349a", unpacks_to="cifar-10-batches-py"),
    ),
    contents={
        "data_batch_1": "c99cafc152244af753f735de768cd75f", "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec", "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751", "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4": "634d18415352ddfa80567beed471001a", "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb", "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
        "test_batch": "40351d587109b95175f43aff81a1287e", "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    },
)
CIFAR_100 = replace(
    CIFAR_10, name="cifar-100", classes=tuple(_CIFAR_100_CLASSES.split()),
    folders=("", "CIFAR100", "cifar100", "CIFAR-100", "cifar-100"),
    downloads=(
        Download("cifar-100-python.tar.gz", (f"{_CIFAR_PAGE}cifar-100-python.tar.gz",), 169_001_437,
                 "eb9058c3a382ffc7106e4002c42a8d85", unpacks_to="cifar-100-python"),
    ),
    contents={"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
)
SVHN = Source(
    name="svhn", license="non-commercial use only",
    citation="Netzer et al., Reading Digits in Natural Images with Unsupervised Feature Learning, 2011",
    classes=_DIGITS, train=73_257, test=26_032, shape=(32, 32, 3),
    mean=(0.4377, 0.4438, 0.4728), std=(0.1980, 0.2010, 0.1970), folders=("SVHN", "svhn", ""), layouts=svhn_layouts,
    downloads=(
        Download("SVHN/train_32x32.mat", (f"{_SVHN_PAGE}train_32x32.mat",), 182_040_794,
                 "e26dedcc434d2e4c54c9b2d4a06d8373"),
        Download("SVHN/test_32x32.mat", (f"{_SVHN_PAGE}test_32x32.mat",), 64_275_384,
                 "eb5a983be6a315427106f1b164d9cef3"),
    ),
)
NOTMNIST = Source(
    name="notmnist", license="none stated; cite the page",
    citation="Bulatov, notMNIST dataset, http://yaroslavvb.blogspot.com/2011/09/notmnist-dataset.html, 2011",
    classes=tuple("ABCDEFGHIJ"), shape=(28, 28), mean=(0.4180,), std=(0.4569,),
    # Of 18,726 files two are empty and 492 are duplicates; a tenth of each letter is for testing.
    train=16_414, test=1_818,
    folders=("notMNIST_small", "notMNIST/notMNIST_small", "notmnist/notMNIST_small", "notMNIST", "notmnist"),
    layouts=notmnist_layouts,
    downloads=(
        Download("notMNIST_small.tar.gz", ("http://yaroslavvb.com/upload/notMNIST/notMNIST_small.tar.gz",), 8_458_043,
                 "c9890a473a9769fda4bdf314aaf500dd", unpacks_to="notMNIST_small"),
    ),
)
MINI_IMAGENET = Source(
    name="miniimagenet", license="ImageNet's terms: non-commercial research and education",
    citation="Vinyals et al., Matching Networks for One Shot Learning, 2016; split of Ravi and Larochelle, 2017",
    classes=tuple(_MINI_IMAGENET_CLASSES.split()), train=50_000, test=10_000, shape=(84, 84, 3),
    mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225),
    folders=("miniImageNet", "miniImagenet", "mini-imagenet", "mini_imagenet", "miniimagenet"),
    layouts=miniimagenet_layouts,
    how_to_get=(
        "ImageNet's terms allow no official download: ask for ILSVRC-2012 at https://image-net.org and move the images "
        "that the csv files of https://github.com/twitter-research/meta-learning-lstm name to a folder for each class, "
        "or use the mini-imagenet-cache-{train,val,test}.pkl of a colleague who may share them"
    ),
)
# fmt: on

SOURCES = {source.name: source for source in (MNIST, FASHION_MNIST, CIFAR_10, CIFAR_100, SVHN, NOTMNIST, MINI_IMAGENET)}


def find(name: str, data_dir: Location | None = None) -> Source:
    """Return the description of a dataset, whose advice names ``data_dir`` if it is given.

    >>> find("svhn").test
    26032
    """
    if name not in SOURCES:
        raise unknown("dataset", name, SOURCES)
    return replace(SOURCES[name], data_dir=os.fspath(data_dir)) if data_dir else SOURCES[name]
