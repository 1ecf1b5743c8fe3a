"""The seven datasets: files, mirrors, checksums, licenses, citations.

Origin of the md5: CIFAR's archives and Fashion-MNIST's files from their home pages; MNIST's, SVHN's and CIFAR's python
batches from torchvision; unpacked idx files and CIFAR-10's binary batches computed from copies with the official
content; notMNIST, which has no official one, as recorded by several independent projects. CIFAR-100's binary batches
and miniImageNet, which was never published as files, have none.
"""

from __future__ import annotations

import os
from dataclasses import replace

from cuber.datasets import class_names
from cuber.datasets.source import Download, Location, Source
from cuber.errors import unknown

_MNIST_FILES = (
    ("train-images-idx3-ubyte", 9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
    ("train-labels-idx1-ubyte", 28_881, "d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
    ("t10k-images-idx3-ubyte", 1_648_877, "9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
    ("t10k-labels-idx1-ubyte", 4_542, "ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
)
"""Name, size of the .gz file, md5 of the .gz file, md5 of its content."""
_FASHION_FILES = (
    ("train-images-idx3-ubyte", 26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d", "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
    ("train-labels-idx1-ubyte", 29_515, "25c81989df183df01b3e8a0aad5dffbe", "9018921c3c673c538a1fc5bad174d6f9"),
    ("t10k-images-idx3-ubyte", 4_422_102, "bef4ecab320f06d8554ea6380940ec79", "8181f5470baa50b63fa0f6fddb340f0a"),
    ("t10k-labels-idx1-ubyte", 5_148, "bb300cfdad3c16e7a12a480ee83cd310", "15d484375f8d13e6eb1aabb0c3f46965"),
)
# The statistics of CIFAR-10; the protocols use them for CIFAR-100 too.
_CIFAR_MEAN = (125.3 / 255, 123.0 / 255, 113.9 / 255)
_CIFAR_STD = (63.0 / 255, 62.1 / 255, 66.7 / 255)
_CIFAR_PAGE = "https://www.cs.toronto.edu/~kriz/"
_CIFAR_LICENSE = "none stated; cite the report"
_CIFAR_CITATION = "Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"
_SVHN_PAGE = "http://ufldl.stanford.edu/housenumbers/"

MNIST = Source(
    name="mnist",
    title="MNIST",
    homepage="http://yann.lecun.com/exdb/mnist/",
    license="CC BY-SA 3.0",
    citation="LeCun, Bottou, Bengio and Haffner, Gradient-based learning applied to document recognition, 1998",
    classes=class_names.DIGITS,
    train=60_000,
    test=10_000,
    shape=(28, 28),
    mean=(0.1307,),
    std=(0.3081,),
    folders=("MNIST/raw", "MNIST", "mnist/raw", "mnist"),
    # The home page no longer offers the files; these are mirrors of the same bytes.
    downloads=tuple(
        Download(
            f"MNIST/raw/{name}.gz",
            (
                f"https://ossci-datasets.s3.amazonaws.com/mnist/{name}.gz",
                f"https://storage.googleapis.com/cvdf-datasets/mnist/{name}.gz",
            ),
            size,
            md5,
        )
        for name, size, md5, _ in _MNIST_FILES
    ),
    contents={name: md5 for name, _, _, md5 in _MNIST_FILES},
)

FASHION_MNIST = Source(
    name="fashion-mnist",
    title="Fashion-MNIST",
    homepage="https://github.com/zalandoresearch/fashion-mnist",
    license="MIT",
    citation="Xiao, Rasul and Vollgraf, Fashion-MNIST: a Novel Image Dataset for Benchmarking, 2017",
    classes=class_names.CLOTHES,
    train=60_000,
    test=10_000,
    shape=(28, 28),
    mean=(0.2860,),
    std=(0.3530,),
    folders=tuple(
        folder for name in ("FashionMNIST", "fashion-mnist", "fashion_mnist") for folder in (f"{name}/raw", name)
    ),
    downloads=tuple(
        Download(
            f"FashionMNIST/raw/{name}.gz",
            (f"http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{name}.gz",),
            size,
            md5,
        )
        for name, size, md5, _ in _FASHION_FILES
    ),
    contents={name: md5 for name, _, _, md5 in _FASHION_FILES},
)

CIFAR_10 = Source(
    name="cifar-10",
    title="CIFAR-10",
    homepage=f"{_CIFAR_PAGE}cifar.html",
    license=_CIFAR_LICENSE,
    citation=_CIFAR_CITATION,
    classes=class_names.CIFAR_10,
    train=50_000,
    test=10_000,
    shape=(32, 32, 3),
    mean=_CIFAR_MEAN,
    std=_CIFAR_STD,
    folders=("", "CIFAR10", "cifar10", "CIFAR-10", "cifar-10"),
    downloads=(
        Download(
            "cifar-10-python.tar.gz",
            (f"{_CIFAR_PAGE}cifar-10-python.tar.gz",),
            170_498_071,
            "c58f30108f718f92721af3b95e74349a",
            unpacks_to="cifar-10-batches-py",
        ),
    ),
    contents={
        "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
        "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    },
)

CIFAR_100 = replace(
    CIFAR_10,
    name="cifar-100",
    title="CIFAR-100",
    classes=class_names.CIFAR_100,
    folders=("", "CIFAR100", "cifar100", "CIFAR-100", "cifar-100"),
    downloads=(
        Download(
            "cifar-100-python.tar.gz",
            (f"{_CIFAR_PAGE}cifar-100-python.tar.gz",),
            169_001_437,
            "eb9058c3a382ffc7106e4002c42a8d85",
            unpacks_to="cifar-100-python",
        ),
    ),
    contents={
        "cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8",
        "train": "16019d7e3df5f24257cddd939b257f8d",
        "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    },
)

SVHN = Source(
    name="svhn",
    title="SVHN, cropped digits",
    homepage=_SVHN_PAGE,
    license="non-commercial use only",
    citation="Netzer et al., Reading Digits in Natural Images with Unsupervised Feature Learning, 2011",
    classes=class_names.DIGITS,
    train=73_257,
    test=26_032,
    shape=(32, 32, 3),
    mean=(0.4377, 0.4438, 0.4728),
    std=(0.1980, 0.2010, 0.1970),
    folders=("SVHN", "svhn", ""),
    downloads=tuple(
        Download(f"SVHN/{name}", (_SVHN_PAGE + name,), size, md5)
        for name, size, md5 in (
            ("train_32x32.mat", 182_040_794, "e26dedcc434d2e4c54c9b2d4a06d8373"),
            ("test_32x32.mat", 64_275_384, "eb5a983be6a315427106f1b164d9cef3"),
        )
    ),
)

NOTMNIST = Source(
    name="notmnist",
    title="notMNIST, small",
    homepage="http://yaroslavvb.blogspot.com/2011/09/notmnist-dataset.html",
    license="none stated; cite the page",
    citation="Bulatov, notMNIST dataset, 2011",
    classes=class_names.LETTERS,
    # Of 18,726 files two are empty and 492 are duplicates; a tenth of each letter is for testing.
    train=16_414,
    test=1_818,
    shape=(28, 28),
    mean=(0.4180,),
    std=(0.4569,),
    folders=("notMNIST_small", "notMNIST/notMNIST_small", "notmnist/notMNIST_small", "notMNIST", "notmnist"),
    downloads=(
        Download(
            "notMNIST_small.tar.gz",
            ("http://yaroslavvb.com/upload/notMNIST/notMNIST_small.tar.gz",),
            8_458_043,
            "c9890a473a9769fda4bdf314aaf500dd",
            unpacks_to="notMNIST_small",
        ),
    ),
)

MINI_IMAGENET = Source(
    name="miniimagenet",
    title="miniImageNet",
    homepage="https://github.com/twitter-research/meta-learning-lstm",
    license="ImageNet's terms: non-commercial research and education",
    citation="Vinyals et al., Matching Networks for One Shot Learning, 2016; split of Ravi and Larochelle, 2017",
    classes=class_names.MINI_IMAGENET,
    train=50_000,
    test=10_000,
    shape=(84, 84, 3),
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    folders=("miniImageNet", "miniImagenet", "mini-imagenet", "mini_imagenet", "miniimagenet"),
    how_to_get=(
        "ImageNet's terms allow no official download: ask for ILSVRC-2012 at https://image-net.org and choose the "
        "images with the csv files of https://github.com/twitter-research/meta-learning-lstm, or use the "
        "mini-imagenet-cache-{train,val,test}.pkl of a colleague who may share them"
    ),
)

SOURCES = {source.name: source for source in (MNIST, FASHION_MNIST, CIFAR_10, CIFAR_100, SVHN, NOTMNIST, MINI_IMAGENET)}


def find(name: str, data_dir: Location | None = None) -> Source:
    """Return the description of a dataset, whose advice names ``data_dir`` if it is given.

    >>> find("svhn").test
    26032
    """
    if name not in SOURCES:
        raise unknown("dataset", name, SOURCES)
    return replace(SOURCES[name], data_dir=os.fspath(data_dir)) if data_dir else SOURCES[name]
