"""A small BERT learns three text tasks with Hugging Face's Trainer and CUBER.

The texts are made from templates: is a review of a restaurant good or bad, is a message a question or a statement, is
a report about the weather or about sports? The tokenizer splits at spaces, and the model begins with random weights.
With cuber.FineTune(model) instead of CUBER, the first task falls to 0 % in the end and the second to 41 %.
"""

import itertools
import random
import tempfile

import torch
import transformers

import cuber
from cuber.integrations.transformers import ContinualCallback

Sample = tuple[str, int]


def fill(template: str, label: int, **words: str) -> list[Sample]:
    """Return the texts that a template makes with all choices of words."""
    choices = itertools.product(*(options.split() for options in words.values()))
    return [(template.format(**dict(zip(words, choice, strict=True))), label) for choice in choices]


good, bad = "tasty fresh friendly cheap lovely", "cold stale rude dear awful"
things, when = "soup bread service fish coffee", "today yesterday tonight again"
people, place = "anna tom mary paul", "station market school office"
TASKS = {
    "reviews": fill("the {a} was {b} {c}", 1, a=things, b=good, c=when)
    + fill("the {a} was {b} {c}", 0, a=things, b=bad, c=when),
    "questions": fill("is {a} at the {b} {c}", 1, a=people, b=place, c=when)
    + fill("{a} is at the {b} {c}", 0, a=people, b=place, c=when),
    "reports": fill("{a} had {b} {c}", 1, a="berlin paris rome oslo", b="rain snow wind sun fog", c=when)
    + fill("{a} had {b} {c}", 0, a="berlin paris rome oslo", b="goals wins draws fouls fans", c=when),
}
words = sorted({word for samples in TASKS.values() for text, _ in samples for word in text.split()})
NUMBERS = {word: number for number, word in enumerate(["[PAD]", *words])}


def encode(samples: list[Sample]) -> dict[str, torch.Tensor]:
    """Make a batch: word numbers, padded to the longest text, with a mask."""
    rows = [torch.tensor([NUMBERS[word] for word in text.split()]) for text, _ in samples]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": torch.tensor([y for _, y in samples])}


torch.set_num_threads(1)  # the network is small
random.seed(0)
transformers.set_seed(0)
transformers.logging.set_verbosity_error()
size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
config = transformers.BertConfig(vocab_size=len(NUMBERS), max_position_embeddings=16, **size)
model = transformers.BertForSequenceClassification(config)
learner = cuber.CUBER(model)


@torch.no_grad()
def accuracy(task: int) -> float:
    batch = encode(test_sets[task])
    with learner.as_task(task):
        return 100 * float((model.eval()(**batch).logits.argmax(1) == batch["labels"]).float().mean())


table, test_sets = [], []
with tempfile.TemporaryDirectory() as folder:
    for name, samples in TASKS.items():
        random.shuffle(samples)
        test_sets.append(samples[::4])
        train = [sample for number, sample in enumerate(samples) if number % 4]
        arguments = transformers.TrainingArguments(
            f"{folder}/{name}",  # checkpoints of each task in a folder of its own
            num_train_epochs=8,
            per_device_train_batch_size=16,
            learning_rate=3e-3,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = transformers.Trainer(model, arguments, train_dataset=train, data_collator=encode)
        ContinualCallback(learner, trainer).train()
        table.append([accuracy(task) for task in range(learner.tasks)])

print("test accuracy in percent; rows: after each task, columns:", ", ".join(TASKS))
for name, row in zip(TASKS, table, strict=True):
    print(f"{'after ' + name:16}" + "".join(f"{value:8.1f}" for value in row))
