"""Train two tasks with CUBER, export the first as a plain module and to ONNX, and run that with onnxruntime.

pip install cuber-learn onnx onnxscript onnxruntime
python examples/export_onnx.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnxruntime
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import cuber

CLASSES = ([0, 1, 2, 3, 4], [5, 6, 7, 8, 9])
"""Task -> its digits."""


def digits() -> list[TensorDataset]:
    """Return the images and labels of each task; labels count from 0 in each."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(data.target)
    tasks = []
    for classes in CLASSES:
        own = torch.isin(labels, torch.tensor(classes))
        tasks.append(TensorDataset(images[own], labels[own] - classes[0]))
    return tasks


def main() -> None:
    """Train, export, run and compare."""
    torch.manual_seed(0)
    backbone = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Linear(512, 64), nn.ReLU()),
    )
    model = cuber.MultiHead(backbone, 64, [5, 5])
    learner = cuber.CUBER(model)
    tasks = digits()
    for number, task in enumerate(tasks):
        loader = DataLoader(task, batch_size=64, shuffle=True)
        learner.begin_task(loader, functional.cross_entropy)
        optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.1))
        for _ in range(3):
            for x, y in loader:
                optimizer.zero_grad()
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()
            learner.end_epoch()
        learner.end_task(loader)
        print(f"task {number}: learned the digits {CLASSES[number]}")

    plain = learner.export(0)
    print(f"export(0): a {type(plain).__module__}.{type(plain).__name__} that does not depend on cuber")

    x, y = tasks[0].tensors
    model.eval()
    with torch.no_grad(), learner.as_task(0):
        expected = model(x)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "task0.onnx"
        batch = torch.export.Dim("batch", min=1, max=4096)
        torch.onnx.export(
            plain, (x[:2],), file, dynamo=True, dynamic_shapes=({0: batch},), external_data=False, verbose=False
        )
        print(f"ONNX: {file.stat().st_size / 1024:.0f} kB, traced with a batch of 2")
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        (output,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    found = torch.from_numpy(output)
    accuracy = (found.argmax(1) == y).float().mean()
    difference = (found - expected).abs().max()
    print(f"onnxruntime, a batch of {len(x)}: {accuracy:.1%} right, largest difference to as_task(0) {difference:.1e}")
    assert difference < 1e-4


if __name__ == "__main__":
    main()
