"""BatchNorm on several ranks, each with a share of a batch, beside one BatchNorm that gets the whole batch.

    torchrun --standalone --nproc-per-node 3 -m ddp_lab.labs.batchnorm_shares

Look at `to_whole`: how far output, gradient and running statistics are from those of the whole batch. compare() takes
any other way to normalise, such as one of your own that asks the other ranks.
"""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import batch_norm

from ddp_lab import worker

SHARES = [4, 3, 2]  # rows of each rank: on 3 ranks 9 rows in all


def compare(normalise):
    """Two steps of `normalise(x, weight, bias, running_mean, running_var)` on this rank's rows, and of the whole."""
    rank, size = dist.get_rank(), sum(SHARES[: dist.get_world_size()])
    mine = slice(sum(SHARES[:rank]), sum(SHARES[: rank + 1]))
    generator = torch.Generator().manual_seed(0)  # all ranks draw the same
    weight, bias = (torch.rand(3, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(2))
    whole = nn.BatchNorm1d(3).double()
    whole.load_state_dict({"weight": weight, "bias": bias}, strict=False)
    running = {"running_mean": torch.zeros(3).double(), "running_var": torch.ones(3).double()}
    for step in range(2):
        rows, g = 1 + 2 * torch.randn(2, size, 3, dtype=torch.float64, generator=generator)
        x, all_x = rows[mine].clone().requires_grad_(), rows.clone().requires_grad_()
        weight.grad = bias.grad = None
        y, all_y = normalise(x, weight, bias, *running.values()), whole(all_x)
        y.backward(g[mine])  # g: the gradient of the loss with respect to the output
        all_y.backward(g)

        worker.log(step=step, x=x, g=g[mine], w=weight, b=bias, y=y, **running)
        worker.log(step=step, grad_x=x.grad, grad_w=weight.grad, grad_b=bias.grad)
        gaps = {"y": y - all_y[mine], "grad_x": x.grad - all_x.grad[mine]}
        gaps |= {name: value - getattr(whole, name) for name, value in running.items()}
        worker.log(step=step, to_whole={name: gap.abs().max().item() for name, gap in gaps.items()})


def main():
    dist.init_process_group()
    compare(lambda x, weight, bias, mean, var: batch_norm(x, mean, var, weight, bias, training=True))
    try:
        nn.SyncBatchNorm(3)(torch.randn(4, 3))  # torch's own, on the CPU
    except ValueError as error:
        worker.log(error=str(error))
    dist.barrier()  # leave together
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
