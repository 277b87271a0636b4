"""The sizes of DDP's buckets, as DDP itself tells them."""

from __future__ import annotations

from typing import NamedTuple


class Buckets(NamedTuple):
    """Bytes of each bucket, in the order in which DDP fills them.

    built: as its constructor made them, of the parameters in opposite order.
    rebuilt: as it made them anew, in the order in which the first backward passes had the gradients ready; None as
        long as it has not, and for ever with find_unused_parameters=True.
    """

    built: list[int]
    rebuilt: list[int] | None


def bucket_sizes(model) -> Buckets:
    """The buckets of a DistributedDataParallel, after so many steps as it has made.

    DDP notes this in the forward passes of its first ten steps, and then of each hundredth: it is one step late.
    RuntimeError where this torch does not tell: the data has a private name, which is used here alone. A communication
    hook sees each bucket in any torch, as in the lab "buckets".
    """
    import torch

    try:
        told = model._get_ddp_logging_data()
        built = told["bucket_sizes"]
    except (AttributeError, KeyError):
        raise RuntimeError(
            f"torch {torch.__version__} does not tell the buckets of a {type(model).__name__}; 2.14 tells those of a "
            "DistributedDataParallel. A communication hook sees them in any torch: the lab buckets has one."
        ) from None
    return Buckets(_numbers(built), _numbers(told.get("rebuilt_bucket_sizes")) or None)


def _numbers(text: str | None) -> list[int]:
    return [int(number) for number in (text or "").split(",") if number.strip()]
