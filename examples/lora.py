"""Continual LoRA: a small BERT learns three text tasks by adapters that leave the outputs of old tasks as they are.

The texts are made: each task has words of its own for its two topics, and words that all tasks share. Takes about 15
seconds on two cores, without a download. Needs ``pip install 'cuber-learn[lora]' transformers``.
"""

import tempfile

import torch
from torch.nn import functional
from transformers import BertConfig, BertForSequenceClassification
from transformers.utils import logging

import cuber

WORDS, LENGTH = 200, 12
torch.manual_seed(0)
torch.set_num_threads(1)  # more threads make products of this size slower
logging.disable_progress_bar()


def task(number: int, samples: int = 320) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sentences and their topics: half of the words, at random places, belong to the topic."""
    topics = torch.randint(2, (samples,))
    shared = torch.randint(80, WORDS, (samples, LENGTH))
    own = 20 * number + 10 * topics.unsqueeze(1) + torch.randint(10, (samples, LENGTH))
    return torch.where(torch.rand(samples, LENGTH) < 1 / 2, own, shared), topics


def batches(x: torch.Tensor, y: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(x.split(32), y.split(32), strict=True))


def loss_fn(output, topics: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.logits, topics)


@torch.no_grad()
def accuracy(x: torch.Tensor, y: torch.Tensor) -> float:
    return float((model(x).logits.argmax(1) == y).float().mean())


config = BertConfig(
    vocab_size=WORDS, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, num_labels=2
)
model = BertForSequenceClassification(config).eval()  # from a config; usually from_pretrained

# The model is trained on a task of its own first: adapters change what it has learned only a little.
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for _ in range(6):
    for x, y in batches(*task(3)):
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()

learner = cuber.LoRA(model, rank=8, targets=["query", "value", "dense"])
tests, logits, table = [], [], []
for number in range(3):
    loader = batches(*task(number))
    tests.append(task(number))
    learner.begin_task(loader, loss_fn)
    optimizer = learner.wrap(torch.optim.AdamW(learner.parameters(), lr=5e-3, weight_decay=0.01))
    for _ in range(8):
        for x, y in loader:
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            optimizer.step()
        learner.end_epoch()
    learner.end_task(loader)
    row = []
    for old, (x, y) in enumerate(tests):
        with torch.no_grad(), learner.as_task(old):
            logits += [model(x).logits] if old == number else []
            row.append(accuracy(x, y))
    table.append(row)

print("Accuracy in percent, after each task:")
print("after   " + "".join(f"task {number:<4}" for number in range(3)))
for number, row in enumerate(table):
    print(f"task {number}  " + "".join(f"{100 * value:<9.1f}" for value in row))

with torch.no_grad(), learner.as_task(0):
    change = (model(tests[0][0]).logits - logits[0]).norm() / logits[0].norm()
print(f"Change of task 0's outputs for texts that were not seen, after two more tasks: {change:.1e}")

with tempfile.TemporaryDirectory() as folder:
    learner.export(0).save_pretrained(folder)
    plain = BertForSequenceClassification.from_pretrained(folder).eval()
with torch.no_grad(), learner.as_task(0):
    difference = (plain(tests[0][0]).logits - model(tests[0][0]).logits).abs().max()
print(f"Merged and loaded by plain transformers, the outputs differ by {difference:.0e}")
