"""A small convolutional network learns three tasks of digit images with Lightning and CUBER."""

import logging
import warnings

import lightning.pytorch as lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import cuber
from cuber.integrations.lightning import ContinualCallback

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", ".*does not have many workers|.*LeafSpec")

torch.set_num_threads(1)  # the network is small
lightning.seed_everything(0, verbose=False)
images, labels = load_digits(return_X_y=True)
images, labels = torch.tensor(images / 16).float().reshape(-1, 1, 8, 8), torch.tensor(labels)


def task_of(digits: list[int]) -> tuple[TensorDataset, TensorDataset]:
    """Return the images of some digits, labeled 0, 1, 2, ...; every fourth is for testing."""
    chosen = torch.isin(labels, torch.tensor(digits))
    x, y = images[chosen], torch.searchsorted(torch.tensor(digits), labels[chosen])
    test = torch.arange(len(x)) % 4 == 0
    return TensorDataset(x[~test], y[~test]), TensorDataset(x[test], y[test])


class Classifier(lightning.LightningModule):
    def __init__(self, tasks: int) -> None:
        super().__init__()
        layers = [nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
        self.network = cuber.MultiHead(nn.Sequential(*layers), 128, [3] * tasks)

    def training_step(self, batch, index):
        x, y = batch
        return cross_entropy(self.network(x), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.002)


tasks = [task_of([0, 1, 2]), task_of([3, 4, 5]), task_of([6, 7, 8])]
module = Classifier(len(tasks))
learner = cuber.CUBER(module.network)


def accuracy(task: int) -> float:
    x, y = tasks[task][1].tensors
    with learner.as_task(task) as network, torch.no_grad():
        return 100 * float((network(x).argmax(1) == y).float().mean())


table = []
for train, _ in tasks:
    loader = DataLoader(train, batch_size=32, shuffle=True)
    trainer = lightning.Trainer(
        max_epochs=5,
        callbacks=[ContinualCallback(learner, loader, cross_entropy)],  # a new Trainer and callback for each task
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader)
    table.append([accuracy(task) for task in range(learner.tasks)])

print("test accuracy in percent; rows: after each task, columns: on each task")
for number, row in enumerate(table):
    print(f"after task {number}" + "".join(f"{value:8.1f}" for value in row))
