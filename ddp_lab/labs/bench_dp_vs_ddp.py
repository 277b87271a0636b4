"""DataParallel against DDP on the same GPUs in turn: how fast a step is, and how full the fullest GPU.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.bench_dp_vs_ddp

ResNet-50, images of 3 x 224 x 224, a rank for each GPU. Look at the last line: "speed +x%, memory -y%". Without GPUs a
small network runs, DataParallel's on virtual devices, and the last line says that the two figures need GPUs.
"""

import gc
import statistics
import time

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torchvision.models import resnet50

from ddp_lab import models, worker
from ddp_lab.meters.virtual import VirtualDataParallel

BATCH = 32  # images for each device in a step


def measure(model, images, labels, inputs_on, gpus):
    """[median seconds of a step, the most bytes that tensors took on one of these GPUs]."""
    optimizer, seconds = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), []
    for gpu in gpus:
        torch.accelerator.reset_peak_memory_stats(gpu)
    for _ in range(25):
        begin = time.perf_counter()
        optimizer.zero_grad()
        scores = model(images.to(inputs_on))
        cross_entropy(scores, labels.to(scores.device)).backward()
        optimizer.step()
        for gpu in gpus:
            torch.accelerator.synchronize(gpu)  # when Python has gone on, a GPU still works
        seconds.append(time.perf_counter() - begin)
    most = max((torch.accelerator.max_memory_allocated(gpu) for gpu in gpus), default=0)
    return [statistics.median(seconds[5:]), most]  # the first ones allocate, and choose algorithms


def compared(dp, ddp):
    """What DDP changes, of [seconds, bytes] each: speed in images a second, memory of the fullest GPU."""
    return f"speed {dp[0] / ddp[0] - 1:+.0%}, memory {ddp[1] / dp[1] - 1:+.0%}"


def main():
    dist.init_process_group()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    kind = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).device_count() >= max(world_size, 2)), "cpu")
    device, real = torch.device(kind, rank), kind != "cpu"  # DataParallel knows one node, so the rank is the local one
    make, size = (resnet50, (3, 224, 224)) if real else (models.cnn, (1, 8, 8))
    labels = torch.arange(BATCH * world_size) % 10
    images = torch.randn(len(labels), *size)

    dp = None
    if rank == 0:  # one process drives all devices
        parallel = DataParallel if real else VirtualDataParallel
        gpus = list(range(world_size)) if real else []
        model = parallel(make().to(device), gpus or world_size)
        dp = measure(model, images, labels, "cpu", gpus)  # from there each share goes straight to its device
        del model
        gc.collect()
        if real:
            torch.accelerator.empty_cache()  # gives the other ranks their GPUs
    dist.all_reduce(torch.zeros(1))  # the others wait here, on the CPU: a barrier of theirs would work on their GPUs

    mine = slice(rank, None, world_size)
    model = DistributedDataParallel(make().to(device))
    ddp = measure(model, images[mine], labels[mine], device, [rank] if real else [])
    worker.log(own_seconds=ddp[0], own_bytes=ddp[1])
    all_ranks = torch.tensor(ddp, dtype=torch.float64)
    dist.all_reduce(all_ranks, dist.ReduceOp.MAX)  # the slowest rank, the fullest GPU

    if rank == 0:
        ddp = all_ranks.tolist()
        for name, (seconds, size) in {"DataParallel": dp, "DDP": ddp}.items():
            memory = f"{size / 2**20:8.0f} MiB on the fullest GPU" if real else ""
            print(f"{name:12}{1000 * seconds:8.1f} ms a step{len(images) / seconds:9.0f} images/s{memory}")
        print(compared(dp, ddp) if real else "a small twin on the CPU: both figures need a GPU for each rank")
        worker.log(real=real, dp_seconds=dp[0], ddp_seconds=ddp[0], dp_bytes=dp[1], ddp_bytes=ddp[1])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
