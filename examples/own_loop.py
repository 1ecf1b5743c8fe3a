"""CUBER in a plain training loop: three tasks of handwritten digits, one after another."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import cuber

torch.set_num_threads(1)  # the network is small
torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
images, labels = torch.tensor(images / 16).float(), torch.tensor(labels)


def task_of(digits: list[int]) -> tuple[TensorDataset, TensorDataset]:
    """Return the images of some digits, labeled 0, 1, 2, ...; every fourth is for testing."""
    chosen = torch.isin(labels, torch.tensor(digits))
    x, y = images[chosen], torch.searchsorted(torch.tensor(digits), labels[chosen])
    test = torch.arange(len(x)) % 4 == 0
    return TensorDataset(x[~test], y[~test]), TensorDataset(x[test], y[test])


tasks = [task_of([0, 1, 2]), task_of([3, 4, 5]), task_of([6, 7, 8])]
backbone = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU())
model = cuber.MultiHead(backbone, 100, [3] * len(tasks))  # one head per task; it selects the right one
learner = cuber.CUBER(model)


def accuracy(task: int) -> float:
    x, y = tasks[task][1].tensors
    with learner.as_task(task), torch.no_grad():  # the output for this task
        return 100 * float((model(x).argmax(1) == y).float().mean())


table = []
for train, _ in tasks:
    loader = DataLoader(train, batch_size=32, shuffle=True)
    learner.begin_task(loader, cross_entropy)
    optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.1))
    for _ in range(10):
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
        learner.end_epoch()
    learner.end_task(loader)
    table.append([accuracy(task) for task in range(learner.tasks)])

print("test accuracy in percent; rows: after each task, columns: on each task")
for number, row in enumerate(table):
    print(f"after task {number}" + "".join(f"{value:8.1f}" for value in row))
