"""How much of common models a learner can protect: layers by directions, embeddings by rows, the rest by name.

python -m benchmarks.coverage
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from cuber import GPM
from cuber.core.coverage import Coverage


class TokenClassifier(nn.Module):
    """A transformer of torch's own layers, on words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 32)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2)
        self.head = nn.Linear(32, 4)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.encoder(self.words(input_ids)))


class Reader(nn.Module):
    """A recurrent network on words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 32)
        self.network = nn.LSTM(32, 32, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(64, 4)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.network(self.words(input_ids))[0])


def torch_models() -> dict[str, Callable[[], nn.Module]]:
    """Models that need nothing but torch."""
    return {"nn.TransformerEncoderLayer": TokenClassifier, "nn.LSTM": Reader}


def transformers_models() -> dict[str, Callable[[], nn.Module]]:
    """Small models of Hugging Face's transformers, from configurations."""
    import transformers as hf

    small: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    words: dict[str, Any] = {"vocab_size": 100, "num_labels": 4}
    bert = hf.BertConfig(**small, **words, intermediate_size=64, max_position_embeddings=64)
    vit = hf.ViTConfig(**small, intermediate_size=64, image_size=32, patch_size=8, num_labels=4)
    gpt2 = hf.GPT2Config(
        **words, n_embd=32, n_layer=2, n_head=4, n_positions=64, pad_token_id=0, bos_token_id=0, eos_token_id=0
    )
    t5 = hf.T5Config(**words, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0)
    llama = hf.LlamaConfig(**small, **words, intermediate_size=64, num_key_value_heads=2, pad_token_id=0)
    return {
        "BERT": lambda: hf.BertForSequenceClassification(bert),
        "ViT": lambda: hf.ViTForImageClassification(vit),
        "GPT-2, classification": lambda: hf.GPT2ForSequenceClassification(gpt2),
        "GPT-2, language model": lambda: hf.GPT2LMHeadModel(gpt2),
        "T5": lambda: hf.T5ForConditionalGeneration(t5),
        "Llama, classification": lambda: hf.LlamaForSequenceClassification(llama),
        "Llama, language model": lambda: hf.LlamaForCausalLM(llama),
    }


def table(models: Iterable[tuple[str, Callable[[], nn.Module]]]) -> list[str]:
    """Return the lines of the table."""
    lines = [f"{'model':28}{'trained':>10}{'protected':>12}{'per task':>11}{'uncovered':>12}  largest reasons"]
    for name, build in models:
        learner = GPM(build())
        found, reasons = Coverage.of(learner), Counter[str]()
        assert found is not None
        for parameter, count in found.unprotected.items():
            reasons[learner.unprotected_parameters()[parameter]] += count
        shares = "".join(
            f"{found.share(count):>{width}}"
            for count, width in ((found.protected, 12), (found.per_task, 11), (reasons.total(), 12))
        )
        largest = ", ".join(f"{reason} {found.share(count)}" for reason, count in reasons.most_common(2))
        lines.append(f"{name:28}{found.trained:>10,}{shares}  {largest}".rstrip())
    return lines


if __name__ == "__main__":
    torch.manual_seed(0)
    print("\n".join(table([*torch_models().items(), *transformers_models().items()])))
