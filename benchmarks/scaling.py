"""What bases cost on large networks and 8 GPUs, put together from measured parts: the tables of docs/scaling.md.

python -m benchmarks.scaling
"""

from __future__ import annotations

from dataclasses import dataclass

from cuber.subspace import WIDE

GRAM = 2 * 4096**2 * 1000 / 1.42
"""Measured (python -m benchmarks --only wide), d = 4,096: float64 operations per CPU second of the d x d sum."""
EIGH = 22.2 / 4096**3
"""Measured, d = 4,096: CPU seconds of its eigenproblem, divided by d^3."""
SKETCH = 27.1 / 20_000 / 11_008
"""Measured, d = 11,008, rank 256: CPU seconds per vector of a sketch, divided by d."""
GPU = 9.7e12 / 3
"""Assumed: a third of the float64 operations per second that the A100's data sheet has. Not measured."""
LINK = 300e9
"""From the A100's data sheet: bytes per second of NVLink in one direction."""
GPUS, SAMPLES, RANK = 8, 300, 256


@dataclass(frozen=True)
class Layers:
    """Equal layers: their number, inputs and outputs of each, and input vectors per sample."""

    count: int
    inputs: int
    outputs: int
    vectors: int

    @property
    def sketched(self) -> bool:
        return self.inputs > WIDE

    @property
    def matrix_bytes(self) -> int:
        """Of the d x d matrix in float64, or of the rows of a sketch in float32."""
        return self.count * (4 * 4 * RANK * self.inputs if self.sketched else 8 * self.inputs**2)

    @property
    def bytes_received(self) -> float:
        """By each GPU: sums go around a ring twice, sketches come from all others and are merged."""
        ring = 2 * (GPUS - 1) / GPUS
        return self.matrix_bytes * (GPUS - 1 if self.sketched else ring) + 4 * self.weights * ring

    @property
    def operations(self) -> float:
        """Of the sums over all vectors; those of a sketch are 8 kept d per vector, with kept = 2 rank."""
        each = 16 * RANK * self.inputs if self.sketched else 2 * self.inputs**2
        return float(self.count * each * self.vectors * SAMPLES)

    @property
    def core_seconds(self) -> float:
        """On one core of this machine."""
        if self.sketched:
            return self.count * self.vectors * SAMPLES * SKETCH * self.inputs
        return self.operations / GRAM + self.count * EIGH * self.inputs**3

    @property
    def weights(self) -> int:
        return self.count * self.inputs * self.outputs

    @property
    def pool_bytes(self) -> int:
        """At most: a full pool, or with max_rank=1024."""
        return self.count * 4 * self.inputs * min(self.inputs, 1024)

    @property
    def gradient_bytes(self) -> float:
        """That CUBER keeps per task: a tenth of the entries and a bit for each."""
        return self.weights * (0.4 + 1 / 8)


def resnet50() -> list[Layers]:
    """At 224 x 224: the convolutions, with inputs = channels x kernel."""
    layers = [Layers(1, 3 * 49, 64, 112**2)]
    before = 64
    for blocks, width, side in ((3, 64, 56), (4, 128, 28), (6, 256, 14), (3, 512, 7)):
        first_side = side if before == 64 else 2 * side  # the stride is in the 3 x 3 convolution
        layers += [
            Layers(1, before, width, first_side**2),
            Layers(1, before, 4 * width, side**2),
            Layers(blocks - 1, 4 * width, width, side**2),
            Layers(blocks, 9 * width, width, side**2),
            Layers(blocks, width, 4 * width, side**2),
        ]
        before = 4 * width
    return layers


def vit_b() -> list[Layers]:
    """At 224 x 224 in patches of 16: 12 blocks of query, key and value, projection, and two dense layers."""
    block = [(768, 2304), (768, 768), (768, 3072), (3072, 768)]
    return [Layers(1, 768, 768, 196), *(Layers(12, inputs, outputs, 197) for inputs, outputs in block)]


def llama_7b_lora(rank: int = 16, tokens: int = 512) -> list[Layers]:
    """32 blocks with adapters at all seven dense layers; their inputs are those of the layer, and its ``rank``."""
    return [
        Layers(32 * 6, 4096, rank, tokens),
        Layers(32, 11_008, rank, tokens),
        Layers(32 * 5, rank, 4096, tokens),
        Layers(32 * 2, rank, 11_008, tokens),
    ]


NETWORKS = {"ResNet-50": resnet50(), "ViT-B/16": vit_b(), "Llama-7B, LoRA 16": llama_7b_lora()}


def table() -> str:
    """Return the table of docs/scaling.md."""
    names = "| | " + " | ".join(NETWORKS) + " |\n|" + "---|" * (len(NETWORKS) + 1)
    return "\n".join([names, *(f"| {name} | {' | '.join(cells)} |" for name, cells in _rows().items())])


def _rows() -> dict[str, list[str]]:
    every = list(NETWORKS.values())
    rows = {
        "weights that are trained and protected": [f"{sum(x.weights for x in ls) / 1e6:.1f} M" for ls in every],
        "input vectors per task": [f"{max(x.vectors for x in ls) * SAMPLES:,} at most" for ls in every],
        "widest layer": [f"{max(x.inputs for x in ls):,}" for ls in every],
        "reduced per step: gradients (DDP)": [_bytes(4 * sum(x.weights for x in ls)) for ls in every],
        "reduced per task: matrices and sketches": [_bytes(sum(x.matrix_bytes for x in ls)) for ls in every],
        "the same with d x d matrices only": [_bytes(sum(8 * x.count * x.inputs**2 for x in ls)) for ls in every],
        "reduced per task: gradients (CUBER)": [_bytes(4 * sum(x.weights for x in ls)) for ls in every],
        "reducing these, 8 GPUs": [f"{sum(x.bytes_received for x in ls) / LINK:.2f} s" for ls in every],
        "sums and directions, one core here": [f"{sum(x.core_seconds for x in ls) / 60:,.0f} min" for ls in every],
        "sums, 8 GPUs": [f"{sum(x.operations for x in ls) / GPU / GPUS:.2f} s" for ls in every],
        "kept: pools, full or max_rank=1024": [_bytes(sum(x.pool_bytes for x in ls)) for ls in every],
        "kept per task: old gradients (CUBER)": [_bytes(sum(x.gradient_bytes for x in ls)) for ls in every],
    }
    return rows


def _bytes(count: float) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


if __name__ == "__main__":
    print(table())
