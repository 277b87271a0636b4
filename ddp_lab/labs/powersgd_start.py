"""PowerSGD: from which step it compresses, what is sent before and after, what it keeps, and its way into a checkpoint.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.powersgd_start

Look at the numbers that each step sends, at `rate`, and at `kept`, the bytes of PowerSGD's memory beside those of the
gradient. `error` of the loaded state is that of the saved one, and each rank has its own.
"""

import argparse
import gc
import io
import os

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import data, models, worker
from ddp_lab.meters.collectives import CollectiveMeter


def kept(state):
    """What a PowerSGDState remembers from step to step, in bytes, by kind."""
    memories = {"error": state.error_dict, "p": state.p_memory_dict, "q": state.q_memory_dict}
    return {kind: sum(tensor.nbytes for tensor in memory.values()) for kind, memory in memories.items()}


def size_of(errors):
    return sum(error.square().sum() for error in errors.values())  # 0 where there are none yet


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--compress-from", type=int, default=3, help="the first such step; before it all is sent")
    parser.add_argument("--matrix-rank", type=int, default=1, help="the more, the nearer to the gradient")
    args = parser.parse_args()
    dist.init_process_group()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    here = int(os.environ["LOCAL_WORLD_SIZE"])  # a GPU for each rank here, or the CPU for all
    kind = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).device_count() >= here), "cpu")
    device = torch.device(kind, int(os.environ["LOCAL_RANK"]))

    torch.manual_seed(0)
    net = models.mlp().to(device)
    model = DistributedDataParallel(net, bucket_cap_mb=1024)  # one bucket: with two, PowerSGD hangs on gloo
    state = PowerSGDState(None, matrix_approximation_rank=args.matrix_rank, start_powerSGD_iter=args.compress_from)
    model.register_comm_hook(state, powerSGD_hook)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    images, labels = (each.to(device) for each in data.digits("train").tensors)
    for step in range(6):
        mine = slice(step * 64 + rank, step * 64 + 64, world_size)
        with CollectiveMeter() as meter:
            optimizer.zero_grad()
            cross_entropy(model(images[mine]), labels[mine]).backward()
            optimizer.step()
        sent = [row["numel"] for row in meter.rows if row["op"] == "all_reduce"]
        rate, _, _ = state.compression_stats()  # of what is compressed since the start
        worker.log(step=step, sent=sent, rate=rate, kept=kept(state), error=size_of(state.error_dict))

    file = io.BytesIO()  # each rank a file of its own: the errors differ
    torch.save(state, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)  # of your own files only: a pickle can run anything
    same = all(loaded.error_dict[bucket].equal(error) for bucket, error in state.error_dict.items())
    worker.log(gradient=sum(p.nbytes for p in net.parameters()), in_model=list(model.state_dict()))
    in_world = loaded.process_group is dist.group.WORLD  # a group is not saved: any other has to be set anew
    worker.log(saved=len(file.getvalue()), loaded_iter=loaded.iter, iter=state.iter, same_error=same, in_world=in_world)
    print(f"sent {sent} numbers at last, rate {rate:.1f}; the state in a file: {len(file.getvalue())} bytes")
    main.group = dist.group.WORLD  # kept to the end: torch aborts where a callback is the last to let go of it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
