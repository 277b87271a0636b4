"""Small real data that ships with the package."""

from pathlib import Path

from ddp_lab.errors import InputError


def digits(split="train"):
    """Handwritten digits: 1,437 images to train on, or the other 360 with `split="test"`.

    Returns a `TensorDataset` of (image, label): image float32 of shape (1, 8, 8) in [0, 1], label int64 from
    0 to 9. The split is fixed, and the order is shuffled once and for all. No download.

    A torchvision dataset works in the same place, since its items are (image, label) too:

        from torchvision.datasets import MNIST
        from torchvision.transforms import ToTensor
        train = MNIST("folder", train=True, transform=ToTensor())      # images of shape (1, 28, 28)

    Download such a set before the run: ranks that all download to one folder get in each other's way.

    Data: E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning
    Repository, 1998, doi.org/10.24432/C50P49, CC BY 4.0.
    """
    import numpy
    import torch

    if split not in ("train", "test"):
        raise InputError(f"split is {split!r}; give 'train' or 'test'")
    with numpy.load(Path(__file__).with_name("digits.npz")) as file:
        images, labels = file[f"{split}_images"], file[f"{split}_labels"]
    images = torch.from_numpy(images).float().div(16).unsqueeze(1)
    return torch.utils.data.TensorDataset(images, torch.from_numpy(labels).long())
