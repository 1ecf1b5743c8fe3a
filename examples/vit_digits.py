"""A small vision transformer learns five pairs of digits with AdamW: fine-tuned, and protected by SoftCUBER."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import cuber

torch.set_num_threads(1)  # the network is small
images, labels = load_digits(return_X_y=True)
images, labels = torch.tensor(images / 16).float().reshape(-1, 1, 8, 8), torch.tensor(labels)
PAIRS = [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]


class ViT(nn.Module):
    """16 patches of 2 x 2 pixels, two encoder layers, the mean over all positions."""

    def __init__(self, features: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, features, kernel_size=2, stride=2)
        self.positions = nn.Parameter(0.02 * torch.randn(1, 16, features))
        layer = nn.TransformerEncoderLayer(features, 4, 2 * features, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(features), enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(self.patches(x).flatten(2).mT + self.positions).mean(1)


def task_of(pair: tuple[int, int]) -> tuple[TensorDataset, TensorDataset]:
    """Return the images of two digits, labeled 0 and 1; every fourth is for testing."""
    chosen = (labels == pair[0]) | (labels == pair[1])
    x, y = images[chosen], (labels[chosen] == pair[1]).long()
    test = torch.arange(len(x)) % 4 == 0
    return TensorDataset(x[~test], y[~test]), TensorDataset(x[test], y[test])


def accuracy(learner: cuber.Method, task: int) -> float:
    x, y = tasks[task][1].tensors
    with learner.as_task(task) as network, torch.no_grad():
        return 100 * float((network(x).argmax(1) == y).float().mean())


tasks = [task_of(pair) for pair in PAIRS]
print(f"test accuracy in percent for the digits {', '.join(f'{one}/{other}' for one, other in PAIRS)}")
for kind in (cuber.FineTune, cuber.SoftCUBER):
    torch.manual_seed(0)
    model = cuber.MultiHead(ViT(), 32, [2] * len(tasks))
    learner = kind(model)
    learned = []
    for task, (train, _) in enumerate(tasks):
        loader = DataLoader(train, batch_size=32, shuffle=True)
        learner.begin_task(loader, cross_entropy)
        optimizer = learner.wrap(torch.optim.AdamW(learner.parameters(), lr=2e-3))
        for _ in range(8):
            for x, y in loader:
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                optimizer.step()
            learner.end_epoch()
        learner.end_task(loader)
        learned.append(accuracy(learner, task))
    final = [accuracy(learner, task) for task in range(len(tasks))]
    for when, row in (("when learned", learned), ("in the end", final)):
        print(f"{kind.__name__:10}{when:14}" + "".join(f"{value:8.1f}" for value in row))
print(learner)
