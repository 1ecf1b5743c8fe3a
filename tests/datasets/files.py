"""Small files in the official formats."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat


def words(value: object) -> str:
    """Test id of a parameter; archives contain the time, so their bytes cannot be one."""
    return value if isinstance(value, str) else "bytes"


def pictures(count: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def write_idx(folder: Path, train: int = 30, test: int = 10, packed: bool = False) -> dict[str, np.ndarray]:
    """Write the four files of MNIST and return their arrays."""
    made = {}
    for split, prefix, count in (("train", "train", train), ("test", "t10k", test)):
        made[f"{split}_images"] = pictures(count, 28, 28, seed=count)
        made[f"{split}_labels"] = np.arange(count, dtype=np.uint8) % 10
        for kind, name in (("images", f"{prefix}-images-idx3-ubyte"), ("labels", f"{prefix}-labels-idx1-ubyte")):
            content = idx_bytes(made[f"{split}_{kind}"])
            write(folder / (f"{name}.gz" if packed else name), gzip.compress(content) if packed else content)
    return made


def channels_first(images: np.ndarray) -> np.ndarray:
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def python2_pickle(batch: dict[str, object]) -> bytes:
    """Pickle as Python 2 did: byte strings in an opcode that Python 3 no longer uses."""

    def text(value: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(value)) + value

    out = b"\x80\x02}"
    for key, value in batch.items():
        out += text(key.encode())
        if isinstance(value, np.ndarray):
            out += b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
            out += b"(K\x01J" + struct.pack("<i", value.shape[0]) + b"J" + struct.pack("<i", value.shape[1]) + b"\x86"
            out += b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
            out += b"\x89" + text(value.tobytes()) + b"tb"
        else:
            assert isinstance(value, list)
            out += b"](" + b"".join(b"J" + struct.pack("<i", number) for number in value) + b"e"
        out += b"s"
    return out + b"."


def cifar_files(name: str, version: str, per_file: int = 8) -> dict[str, tuple[bytes, np.ndarray, np.ndarray]]:
    """Return the files of a version of CIFAR: bytes, images, labels."""
    classes = 10 if name == "cifar-10" else 100
    batches = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]
    names = batches if name == "cifar-10" else ["train", "test"]
    files = {}
    for seed, file in enumerate(names):
        images = pictures(per_file, 32, 32, 3, seed=seed)
        labels = (np.arange(per_file) * 7 + seed) % classes
        if version == "python":
            key = "labels" if name == "cifar-10" else "fine_labels"
            content = python2_pickle({"data": channels_first(images), key: labels.tolist()})
        else:
            heads = [labels] if name == "cifar-10" else [labels // 5, labels]
            content = np.column_stack([*heads, channels_first(images)]).astype(np.uint8).tobytes()
            file += ".bin"
        files[file] = (content, images, labels)
    return files


CIFAR_FOLDERS = {
    ("cifar-10", "python"): "cifar-10-batches-py",
    ("cifar-10", "binary"): "cifar-10-batches-bin",
    ("cifar-100", "python"): "cifar-100-python",
    ("cifar-100", "binary"): "cifar-100-binary",
}


def tar_bytes(members: Sequence[tuple[str, bytes] | tarfile.TarInfo], mode: str = "w:gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.size = len(member[1])
            tar.addfile(info, io.BytesIO(member[1]))
    return buffer.getvalue()


def write_svhn(folder: Path, train: int = 22, test: int = 11) -> dict[str, np.ndarray]:
    made = {}
    for split, count in (("train", train), ("test", test)):
        images, labels = pictures(count, 32, 32, 3, seed=count), np.arange(count) % 10
        numbered = np.where(labels == 0, 10, labels).astype(np.uint8)
        folder.mkdir(parents=True, exist_ok=True)
        content = {"X": images.transpose(1, 2, 3, 0), "y": numbered[:, None]}
        savemat(folder / f"{split}_32x32.mat", content, do_compression=True)
        made |= {f"{split}_images": images, f"{split}_labels": labels}
    return made


def write_image(path: Path, image: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path, quality=95) if path.suffix == ".jpg" else Image.fromarray(image).save(path)


def write_notmnist(folder: Path, per_class: int = 20) -> None:
    for position, letter in enumerate("ABCDEFGHIJ"):
        for number, image in enumerate(pictures(per_class, 28, 28, seed=position)):
            write_image(folder / letter / f"{number:03}.png", image)


def write_mini_pickles(folder: Path, classes: Sequence[str], per_class: int = 6, protocol: int = 2) -> np.ndarray:
    """Write the three pickles, each with some of the classes, and return all images in the order of the classes."""
    folder.mkdir(parents=True, exist_ok=True)
    images = pictures(len(classes) * per_class, 84, 84, 3)
    bounds = [0, len(classes) // 2, len(classes) * 3 // 4, len(classes)]
    for subset, first, last in zip(("train", "val", "test"), bounds, bounds[1:], strict=False):
        some = images[first * per_class : last * per_class]
        which = {
            name: list(range(position * per_class, (position + 1) * per_class))
            for position, name in enumerate(classes[first:last])
        }
        with (folder / f"mini-imagenet-cache-{subset}.pkl").open("wb") as file:
            pickle.dump({"image_data": some, "class_dict": which}, file, protocol=protocol)
    return images
