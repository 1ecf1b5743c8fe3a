"""Time of a protected step of AdamW relative to a plain one, for a ViT in its second task. See docs/transformers.md.

    python -m benchmarks.vit_steps [--widths 64,192]

Four layers, 32 images of 64 patches, one thread; the lower quartile of the CPU time of twelve steps.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch.nn import functional

import cuber
from benchmarks.class_token import ClassToken

KINDS = (cuber.FineTune, cuber.GPM, cuber.TRGP, cuber.CUBER, cuber.SoftCUBER)


def seconds_per_step(kind: type[cuber.Method], width: int) -> float:
    """Return the CPU time of a step in the second task."""
    torch.manual_seed(0)
    model = cuber.MultiHead(ClassToken(width, 4, image_size=32, patch_size=4, num_hidden_layers=4), width, [10, 10])
    learner = kind(model)
    loader = [(torch.randn(32, 3, 32, 32), torch.randint(10, (32,))) for _ in range(4)]
    for _ in range(2):
        learner.begin_task(loader, functional.cross_entropy)
        optimizer = learner.wrap(torch.optim.AdamW(learner.parameters(), lr=1e-4))
        model.train()
        seconds = []
        for _ in range(3):
            for x, y in loader:
                began = time.process_time()
                optimizer.zero_grad()
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                seconds.append(time.process_time() - began)
            learner.end_epoch()
        learner.end_task(loader)
    return sorted(seconds)[len(seconds) // 4]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", default="64,192")
    torch.set_num_threads(1)
    print("| width |" + "".join(f" {kind.__name__} |" for kind in KINDS) + "\n|---|" + "---|" * len(KINDS))
    for width in map(int, parser.parse_args().widths.split(",")):
        times = [seconds_per_step(kind, width) for kind in KINDS]
        print(f"| {width} |" + "".join(f" {seconds / times[0]:.2f} |" for seconds in times), flush=True)


if __name__ == "__main__":
    main()
