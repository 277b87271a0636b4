"""One training for each hook: how many bytes go over the wire, how long a step takes, how well it learns.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.hooks_compared

Look at `seconds` of a step, at `accuracy`, and at the bytes of the collectives. Hooks: `--hook fp16`, bf16, powersgd,
post_local_sgd, topk, or none; several are trained one after the other, and all again for each seed of `--seeds 3`.
`--width 1024` makes 4.5 MB of gradients: enough that a slow link is felt.
"""

import argparse
import gc
import os
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import data, models, worker
from ddp_lab.labs.topk_hook import TopK, topk_hook

START, PERIOD = 3, 4  # the step from which gradients are no longer all-reduced whole; steps from average to average
HOOKS = {  # what is registered: the state and the hook
    "none": lambda: None,
    "fp16": lambda: (None, fp16_compress_hook),
    "bf16": lambda: (None, lambda state, bucket: bf16_compress_hook(state, bucket)),  # torch bars its name without NCCL
    "powersgd": lambda: (PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=START), powerSGD_hook),
    # no gradients are sent between the averages, so no subgroup is needed
    "post_local_sgd": lambda: (PostLocalSGDState(None, None, START, False), post_localSGD_hook),
    "topk": lambda: (TopK(share=0.01), topk_hook),
}


def train(hook, seed, args, device):
    torch.manual_seed(seed)
    net = models.mlp(hidden=args.width, layers=2).to(device)
    # One bucket. PowerSGD waits, in the callback of a bucket, for its next all-reduce, and the callbacks run on the
    # very threads, two, on which gloo does the all-reduces: with two buckets both wait, and nobody works.
    model = DistributedDataParallel(net, bucket_cap_mb=1024)
    if hook != "none":
        model.register_comm_hook(*HOOKS[hook]())
    averager = PeriodicModelAverager(PERIOD, warmup_steps=START)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    images, labels = (each.to(device) for each in data.digits("train").tensors)
    order, times = torch.Generator().manual_seed(seed), []
    for step in range(args.steps):
        mine = torch.randint(len(images), (64,), generator=order)[dist.get_rank() :: dist.get_world_size()].to(device)
        begin = time.perf_counter()
        loss = cross_entropy(model(images[mine]), labels[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if hook == "post_local_sgd":
            averager.average_parameters(net.parameters())
        loss.item()  # on a GPU: waits until the step is done
        times.append(time.perf_counter() - begin)
        worker.log(step=step, loss=loss)
    # The mean of PERIOD steps, of which one has an average; the median of those; the slowest rank's.
    seconds = torch.tensor(times[PERIOD:], device=device).unfold(0, PERIOD, PERIOD).mean(1).median()
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    images, labels = (each.to(device) for each in data.digits("test").tensors)
    accuracy, gradient = (net(images).argmax(1) == labels).float().mean(), sum(p.nbytes for p in net.parameters())
    worker.log(hook=hook, seed=seed, seconds=seconds, accuracy=accuracy, gradient=gradient)
    print(f"{hook}: {1000 * seconds:.2f} ms a step, test accuracy {accuracy:.1%}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--hook", choices=HOOKS, nargs="+", default=["none"])
    parser.add_argument("--width", type=int, default=128, help="of the hidden layers")
    parser.add_argument("--steps", type=int, default=60, help="4, 8, 12, ...: then the last one has an average")
    parser.add_argument("--seeds", type=int, default=1, help="as many trainings, each with weights and an order anew")
    args = parser.parse_args()
    if args.steps < 2 * PERIOD:
        parser.error(f"--steps {args.steps}: give at least {2 * PERIOD}, for the first {PERIOD} are not timed")
    dist.init_process_group()
    here = int(os.environ["LOCAL_WORLD_SIZE"])  # a GPU for each rank here, or the CPU for all
    kind = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).device_count() >= here), "cpu")
    device = torch.device(kind, int(os.environ["LOCAL_RANK"]))
    for seed in range(args.seeds):
        for hook in args.hook:  # in turn, so that what disturbs the times disturbs all hooks
            train(hook, seed, args, device)
    dist.barrier()  # leave together
    main.group = dist.group.WORLD  # kept to the end: torch aborts where a callback is the last to let go of it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
