"""data and models: what their docstrings say, counted."""

import re

import numpy as np
import pytest
import torch

from ddp_lab import data, models
from ddp_lab.errors import InputError


def test_the_digits_are_all_there_and_no_image_is_in_both_parts():
    train, test = data.digits(), data.digits("test")
    assert (len(train), len(test)) == (1437, 360)
    images = torch.cat([train.tensors[0], test.tensors[0]]).flatten(1).numpy()
    assert len(np.unique(images, axis=0)) == 1797


@pytest.mark.parametrize("split", ["train", "test"])
def test_an_item_is_an_image_and_a_label(split):
    images, labels = data.digits(split).tensors
    assert images.shape[1:] == (1, 8, 8) and images.dtype == torch.float32
    assert images.min() == 0 and images.max() == 1
    assert labels.dtype == torch.int64 and labels.unique().tolist() == list(range(10))
    assert labels.bincount().min() > 0.07 * len(labels)  # every digit is common enough to count


def test_the_split_and_the_order_are_fixed():
    again = [data.digits(split).tensors for split in ("train", "test")]
    assert again[0][1][:12].tolist() == [6, 6, 6, 2, 5, 6, 6, 2, 2, 1, 1, 9] and again[1][1][:12].tolist() == [
        0,
        8,
        8,
        9,
        8,
        3,
        7,
        5,
        0,
        6,
        6,
        3,
    ]
    assert all(torch.equal(a, b) for a, b in zip(again[0], data.digits("train").tensors, strict=True))


def test_the_labels_belong_to_the_images():
    """A nearest neighbour reads nearly all of the test digits: no shuffle has parted images from labels."""
    (images, labels), (asked, answers) = (data.digits(split).tensors for split in ("train", "test"))
    nearest = torch.cdist(asked.flatten(1), images.flatten(1)).argmin(1)
    assert (labels[nearest] == answers).float().mean() > 0.97


def test_an_unknown_split_is_refused():
    with pytest.raises(InputError, match="'valid'"):
        data.digits("valid")


def test_the_source_of_the_digits_is_named():
    note = (data.Path(data.__file__).parent / "README.md").read_text()
    for text in (data.digits.__doc__, note):
        assert "Alpaydin" in text and "10.24432/C50P49" in text
    assert "creativecommons.org/licenses/by/4.0" in note


def test_each_hidden_layer_more_has_as_many_parameters_as_its_width_says():
    one, three = ([p.numel() for p in models.mlp(hidden=16, layers=layers).parameters()] for layers in (1, 3))
    assert three == [*one[:2], *[16 * 16, 16] * 2, *one[2:]]


@pytest.mark.parametrize("make", [models.mlp, models.cnn])
def test_a_model_has_as_many_parameters_as_it_says(make):
    model = make()
    numbers, tensors = sum(p.numel() for p in model.parameters()), len(list(model.parameters()))
    assert f"{numbers:,} parameters in {tensors} tensors" in re.sub(r"\s+", " ", make.__doc__)
    assert len(list(model.buffers())) == (3 if make is models.cnn else 0)
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


@pytest.mark.parametrize("make", [models.mlp, models.cnn])
def test_a_model_takes_larger_images_and_leaves_the_seed_alone(make):
    assert make(size=28)(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    torch.manual_seed(1)
    first = make()
    assert not torch.equal(next(first.parameters()), next(make().parameters()))


def test_the_tied_model_shares_a_weight_and_freezes_a_layer_as_it_says():
    model = models.tied()
    assert model.leave.weight is model.enter.weight
    numbers = {name: weight.numel() for name, weight in model.named_parameters()}
    assert numbers == {"enter.weight": 96, "frozen.weight": 64, "frozen.bias": 8, "leave.bias": 12}
    assert f"{sum(numbers.values())} parameters in {len(numbers)} tensors" in models.tied.__doc__
    assert [name for name, weight in model.named_parameters() if weight.requires_grad] == ["enter.weight", "leave.bias"]
    assert model(torch.arange(5)).shape == (5, 12)
