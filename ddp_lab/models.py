"""Small models for the course's images. None of them sets a seed: that is for the script to decide."""

from torch import nn


def mlp(size=8, hidden=64, classes=10, layers=1):
    """A network with so many hidden layers for images (n, 1, size, size) -> scores (n, classes).

    4,810 parameters in 4 tensors, with the defaults (64 x 64 + 64, then 64 x 10 + 10). Each layer more has
    hidden x hidden + hidden in 2 tensors: some MB are soon reached.
    """
    parts = [nn.Flatten(), nn.Linear(size * size, hidden), nn.ReLU()]
    for _ in range(layers - 1):
        parts += [nn.Linear(hidden, hidden), nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(hidden, classes))


def cnn(size=8, classes=10):
    """A convolution network with batch normalisation for images (n, 1, size, size) -> scores (n, classes).

    The image size must be even. 2,762 parameters in 6 tensors, and 3 buffers, with the defaults
    (the buffers are BatchNorm's running mean, running variance and count of batches).
    """
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * (size // 2) ** 2, classes),
    )


def tied(words=12, width=8):
    """Words -> scores of words: both ends share one weight, and the layer between them is frozen.

    Takes (n,) whole numbers below `words`, gives (n, words). With the defaults 180 parameters in 4 tensors: 96 that
    are `enter.weight` and `leave.weight` at once, `leave.bias` (12), and `frozen` (64 + 8) that need no gradient.
    """
    return _Tied(words, width)


class _Tied(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.enter = nn.Embedding(words, width)
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.leave = nn.Linear(width, words)
        self.leave.weight = self.enter.weight

    def forward(self, words):
        return self.leave(self.frozen(self.enter(words)).tanh())
