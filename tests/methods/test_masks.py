"""Padded positions stay out of what a method remembers."""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import cuber
from cuber import CuberError
from cuber.core.masks import as_sequences, attention_mask
from tests.layers.table import protected

LENGTHS = [5, 3, 7, 2, 6, 7, 4, 4, 5, 2, 3, 7]
WIDTH = 8
METHODS: dict[str, Callable[..., Any]] = {
    "GPM": lambda model, **options: cuber.GPM(model, sketch="never", variance=0.0, **options),
    "sketched CUBER": lambda model, **options: cuber.CUBER(model, sketch="always", variance=0.0, **options),
    "SoftCUBER": cuber.SoftCUBER,
    "OWM": lambda model, **options: cuber.OWM(model, averaged=5, **options),
}


class Encoder(nn.Module):
    """A transformer that honors a mask, and the mean over real positions."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(WIDTH, 2, 12, batch_first=True)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        found = self.encoder(x, src_key_padding_mask=~mask)
        return self.head((found * mask.unsqueeze(2)).sum(1) / mask.sum(1, keepdim=True))


class Flattening(nn.Module):
    """Positions as rows of one matrix, as some models compute them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        found = self.first(x.flatten(0, 1)).tanh().unflatten(0, x.shape[:2])
        return self.head((found * mask.unsqueeze(2)).sum(1) / mask.sum(1, keepdim=True))


def bert() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12, num_labels=3
    )
    return transformers.BertForTokenClassification(config)  # the other pools position 0, which may be padding


def gpt2() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=20, n_embd=8, n_layer=2, n_head=2, n_positions=16, num_labels=3, pad_token_id=0
    )
    return transformers.GPT2ForSequenceClassification(config)


MODELS = {"Encoder": Encoder, "Flattening": Flattening, "BERT": bert, "GPT-2": gpt2}


def batch_of(samples: list[int], model: nn.Module, *, left: bool = False, longest: int = 0) -> Any:
    """A batch of some of the samples, padded with other values to the longest of them, or to a length."""
    random = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, 20, (12, 7), generator=random)
    vectors = torch.randn(12, 7, WIDTH, generator=random).double()
    longest = max([longest, *(LENGTHS[sample] for sample in samples)])
    ids = torch.zeros(len(samples), longest, dtype=torch.long)
    x = 3 + torch.randn(len(samples), longest, WIDTH, generator=random).double()
    mask, positions = torch.zeros_like(ids), torch.zeros_like(ids)
    for row, sample in enumerate(samples):
        length = LENGTHS[sample]
        place = slice(longest - length, None) if left else slice(length)
        ids[row, place], mask[row, place] = tokens[sample, :length], 1
        x[row, place], positions[row, place] = vectors[sample, :length], torch.arange(length)
    y = torch.tensor([sample % 3 for sample in samples])
    if isinstance(model, Encoder | Flattening):
        return {"x": x, "mask": mask.bool()}, y
    batch = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
    if "Token" in type(model).__name__:
        y = torch.where(mask.bool(), ids % 3, -100)
    return batch | {"token_type_ids": torch.zeros_like(ids), "labels": y}


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    if isinstance(batch, tuple):
        return functional.cross_entropy(model(**batch[0]), batch[1])
    return model(**batch).loss


def learned(kind: str, model: nn.Module, loader: list[Any], **options: Any) -> Any:
    """A method that has learned one task, at the model's own weights."""
    model = copy.deepcopy(model)
    if isinstance(model, Encoder | Flattening) and not options:
        options = {"mask": lambda batch: batch[0]["mask"]}
    learner = METHODS[kind](model, forward=loss_of, **options)
    learner.begin_task(loader)
    optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.0))
    learner.loss(loader[0]).backward()
    optimizer.step()
    learner.end_task(loader)
    return learner


def remembered(kind: str, model: nn.Module, loader: list[Any], **options: Any) -> dict[str, Tensor]:
    """What a method remembers of one task: a matrix for each layer."""
    learner = learned(kind, model, loader, **options)
    if isinstance(learner, cuber.OWM):
        return dict(learner.memory)
    if isinstance(learner, cuber.SoftCUBER):
        models = learner.models.items()
        return {name: (it.directions * it.curvatures) @ it.directions.mT for name, it in models}
    return {name: memory.basis @ memory.basis.mT for name, memory in learner.memory.items()}


def furthest(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    assert found.keys() == expected.keys()
    return max(float((found[name] - expected[name]).norm() / expected[name].norm()) for name in expected)


def made(name: str) -> nn.Module:
    torch.manual_seed(2)
    return MODELS[name]().double().eval()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", MODELS)
def test_padded_and_unpadded_batches_leave_the_same(name: str, method: str) -> None:
    model = made(name)
    unpadded = [batch_of([sample], model) for sample in range(12)]
    expected = remembered(method, model, unpadded)
    for left in (False, True):
        padded = [batch_of([*range(8)], model, left=left), batch_of([*range(8, 12)], model, left=left, longest=9)]
        assert furthest(remembered(method, model, padded), expected) < 1e-6
        without = remembered(method, model, padded, mask=lambda batch: None)
        assert furthest(without, expected) > 1e-3
        assert furthest(remembered(method, model, padded, mask=None), without) == 0


@pytest.mark.parametrize("positions", ["given", "the model's"])
@pytest.mark.parametrize("method", ["GPM", "OWM"])
@pytest.mark.parametrize("name", ["BERT", "GPT-2"])
def test_padded_and_unpadded_batches_use_the_same_rows(name: str, method: str, positions: str) -> None:
    model = made(name)

    def batch(samples: list[int], **padding: Any) -> Any:
        inputs = batch_of(samples, model, **padding)
        del inputs["token_type_ids"]  # GPT-2 looks these up among the words
        if positions != "given":
            del inputs["position_ids"]
        return inputs

    expected = learned(method, model, [batch([sample]) for sample in range(12)]).rows
    assert len(expected) >= 2
    for left in (False, True) if positions == "given" else (False,):  # the model's own begin at the padding
        padded = [batch([*range(8)], left=left), batch([*range(8, 12)], left=left, longest=9)]
        found = learned(method, model, padded).rows
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[table], expected[table]) for table in expected)
        whole = learned(method, model, padded, mask=None).rows
        assert sum(int(rows.sum()) for rows in whole.values()) > sum(int(rows.sum()) for rows in found.values())


def test_only_real_positions_of_the_wanted_samples_count() -> None:
    for name in ("Encoder", "Flattening"):
        model = made(name)
        learner = cuber.GPM(model, samples=3, forward=loss_of, mask=lambda batch: batch[0]["mask"])
        grams = learner.input_grams([batch_of([0, 1], model), batch_of([2, 3], model)])
        layer = "encoder.linear1" if name == "Encoder" else "first"
        assert grams[layer].count == sum(LENGTHS[:3])
        assert grams["head"].count == 3


def test_owm_averages_over_the_samples_that_have_a_position() -> None:
    model = made("Flattening")
    batch = batch_of([1, 0, 3], model)  # lengths 3, 5, 2
    x = batch[0]["x"]
    means = [x[:, t][batch[0]["mask"][:, t]].mean(0) for t in range(5)]
    vectors = torch.stack([torch.cat([mean, mean.new_ones(1)]) for mean in means])
    expected = torch.eye(WIDTH + 1).double() + vectors.mT @ vectors / 0.3
    assert torch.allclose(remembered("OWM", model, [batch])["first"], expected)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Linear(5, 3), (4, 5)),  # pooled, as wide as there are positions
        (nn.Linear(2, 3), (4, 6, 2)),  # another sequence
        (nn.Linear(2, 3), (5, 4, 2)),  # positions first
        (nn.Conv1d(5, 3, 2), (4, 5, 7)),  # as many channels as positions
        (nn.Conv2d(5, 3, 2), (4, 5, 7, 7)),
    ],
)
def test_inputs_that_a_mask_does_not_fit_are_taken_whole(module: nn.Module, shape: tuple[int, ...]) -> None:
    real = torch.arange(5) < torch.tensor([[5], [2], [3], [1]])
    assert as_sequences(protected(module), torch.randn(shape), real) is None
    assert as_sequences(protected(module), torch.randn(shape), None) is None


def test_numbers_of_embeddings_are_masked_like_vectors() -> None:
    layer, real = protected(nn.Linear(2, 3)), torch.ones(4, 5, dtype=torch.bool)
    numbers = torch.arange(20)
    for x in (numbers, numbers.reshape(4, 5)):
        found = as_sequences(layer, x, real)
        assert found is not None
        assert torch.equal(found, numbers.reshape(4, 5))


def test_the_attention_mask_is_found_by_name() -> None:
    mask = torch.tensor([[1, 0]])
    inputs = {"attention_mask": mask}
    for batch in (inputs, UserDict(inputs), (inputs, mask), [mask, inputs], {"attention_mask": mask, "labels": mask}):
        assert attention_mask(batch) is mask
    for batch in (mask, (mask, mask), {"mask": mask}, "text", 3):
        assert attention_mask(batch) is None


class Wrapped(nn.Module):
    """A model that holds another, as users write them around pretrained models."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, **inputs: Tensor) -> Any:
        return self.inner(**inputs)


def t5() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        vocab_size=20, d_model=8, d_kv=4, d_ff=12, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config)


SEQUENCE_TO_SEQUENCE: dict[str, Callable[[], nn.Module]] = {
    "T5": t5,
    "nn.Transformer": lambda: nn.Transformer(8, 2, 1, 1, 12, batch_first=True),
    "nn.TransformerDecoder": lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 12), 1),
    "nn.TransformerDecoderLayer": lambda: nn.TransformerDecoderLayer(8, 2, 12),
}


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("name", SEQUENCE_TO_SEQUENCE)
def test_the_attention_mask_of_an_encoder_says_nothing_about_its_decoder(name: str, wrapped: bool) -> None:
    batch = {"attention_mask": torch.tensor([[1, 0]])}
    model = SEQUENCE_TO_SEQUENCE[name]()
    learner = cuber.GPM(Wrapped(model) if wrapped else model)
    assert learner.real_positions(batch) is None
    learner.mask = lambda batch: batch["attention_mask"]
    assert learner.real_positions(batch) is not None


@pytest.mark.parametrize("name", ["BERT", "GPT-2"])
def test_the_attention_mask_counts_in_a_wrapped_model_of_one_sequence(name: str) -> None:
    learner = cuber.GPM(Wrapped(made(name)))
    assert learner.real_positions({"attention_mask": torch.tensor([[1, 0]])}) is not None


def test_all_inputs_of_a_wrapped_decoder_are_remembered() -> None:
    torch.manual_seed(0)
    model = Wrapped(t5())
    ids, labels = torch.randint(1, 20, (2, 3, 5))
    padded = {"input_ids": ids, "attention_mask": torch.tensor([[1, 1, 0, 0, 0]] * 3), "labels": labels}
    learner = cuber.GPM(model, forward=loss_of)
    layer = "inner.decoder.block.0.layer.0.SelfAttention.q"
    assert learner.input_grams([padded])[layer].count == labels.numel()


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(12), r"has shape \(12,\) in a batch of 12 samples"),
        (torch.ones(3, 7), r"has shape \(3, 7\) in a batch of 12 samples"),
        (torch.ones(12, 1, 7, 7), r"has shape \(12, 1, 7, 7\) in a batch"),
        ([[1, 1, 0]], "it is a list"),
        (torch.tensor([0.0, -torch.inf]).repeat(12, 4), "has values other than 0 and 1"),
        (torch.tensor([0, -10000]).repeat(12, 4), "has values other than 0 and 1"),
        (torch.zeros(12, 7), "mask calls every position padding.*key_padding_mask is the opposite"),
    ],
)
@pytest.mark.parametrize("method", ["GPM", "OWM"])
def test_a_wrong_mask_is_refused_before_training(method: str, mask: Any, message: str) -> None:
    model = made("Encoder")
    with pytest.raises(CuberError, match=message):
        remembered(method, model, [batch_of([*range(12)], model)], mask=lambda batch: mask)


def test_a_mask_that_is_no_function_or_raises_is_named() -> None:
    model = made("Encoder")
    with pytest.raises(CuberError, match=r"mask must be a function of the batch, .* not a Tensor"):
        cuber.GPM(model, mask=torch.ones(2, 2))  # type: ignore[arg-type]
    with pytest.raises(CuberError, match="mask cannot take the loader's batches: 'msk'"):
        remembered("GPM", model, [batch_of([0, 1], model)], mask=lambda batch: batch[0]["msk"])
