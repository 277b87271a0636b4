"""Which GPU each local rank gets under a CUDA_VISIBLE_DEVICES, worked out without a GPU and without touching one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral

from ddp_lab.errors import InputError
from ddp_lab.gpus import GPU, choose

MOST = 64  # GPUs of a machine, as many as torch lists where nothing is hidden


def visible_devices(mask: str | Sequence[str] | None, gpus: int | Iterable[str] = 8, nproc: int | None = None):
    """What each local rank of a node would have as its own device, `cuda:LOCAL_RANK`, under CUDA_VISIBLE_DEVICES.

    - mask: the variable's value, such as "2,3", "GPU-8932f937", "" or "-1"; None where it is not set. A list of masks
      gives each local rank the one in its place, as a launcher does that sets one per rank: there every rank's own
      device is `cuda:0`.
    - gpus: how many GPUs the node has, or the list of their UUIDs, in nvidia-smi's order.
    - nproc: ranks on the node. By default one for each GPU that the mask leaves, at least one.

    Returns a pandas DataFrame with a row for each local rank: local_rank; device, its own; physical, which GPU that
    is: the number in nvidia-smi's order, the mask's name for a MIG slice, <NA> for none; note, what there is to
    know: why there is no such device, or that an entry is read in a way that is not documented.

    The rules are those of the CUDA programming guide, section 5.2.1.1. Where it is silent (repeated entries, mixed
    kinds, "1x"), torch's own reading decides, and the note says so. MIG names are taken on trust, as nvidia-smi's
    list of GPUs does not have them. That GPUs are numbered as in nvidia-smi is the guide's word for the mask; what
    CUDA numbers without a mask goes by speed, unless CUDA_DEVICE_ORDER=PCI_BUS_ID.

    InputError for a mask or a number that cannot be, and for UUIDs in a mask where `gpus` has none to compare with.
    """
    import pandas

    installed = _installed(gpus)
    if isinstance(mask, (list, tuple)):
        masks = [_text(each, gpus) for each in mask]
        if not masks:
            raise InputError("mask=[] has no mask for any rank: give one text for each local rank, or one for all")
        if nproc is not None and _count("nproc", nproc, 1) != len(masks):
            raise InputError(f"{len(masks)} masks for nproc={nproc} ranks: give one for each local rank")
        rows = _shared([_row(rank, 0, choose(installed, each), rank) for rank, each in enumerate(masks)])
    else:
        choice = choose(installed, _text(mask, gpus))
        ranks = max(len(choice.gpus), 1) if nproc is None else _count("nproc", nproc, 1)
        rows = [_row(rank, rank, choice) for rank in range(ranks)]
    table = pandas.DataFrame(rows, columns=["local_rank", "device", "physical", "note"])
    numbers = not any(isinstance(row[2], str) for row in rows)
    table["physical"] = table["physical"].astype("Int64" if numbers else "object").fillna(pandas.NA)
    table.attrs["gpus"] = len(installed)
    return table


def _row(rank, index, choice, asked=None):
    """The row of a local rank whose own device is `cuda:index`; `asked`: its number, where it has a mask of its own."""
    device = f"cuda:{index}"
    if index < len(choice.gpus):
        gpu, notes = choice.gpus[index], [choice.notes[index]]
        physical = gpu.uuid if gpu.index is None else gpu.index
        if asked and asked >= len(choice.gpus):
            notes.append(f"cuda:{asked}, by the local rank, would be no device: this rank sees {len(choice.gpus)}")
        return rank, device, physical, "; ".join(filter(None, notes))
    count = len(choice.gpus)
    why = choice.end or f"{count} {'GPU is' if count == 1 else 'GPUs are'} visible"
    return rank, device, None, f"no such device: {why}"


def _shared(rows):
    """The rows, with a note where a rank has the GPU of one before it."""
    first, found = {}, []
    for rank, device, physical, note in rows:
        other = first.setdefault(physical, rank)
        if physical is not None and other != rank:
            note = f"the same GPU as local rank {other}" + (f"; {note}" if note else "")
        found.append((rank, device, physical, note))
    return found


def _installed(gpus):
    """The GPUs as `choose` wants them, of a number or of a list of UUIDs."""
    if isinstance(gpus, Integral):
        return [GPU(index, "", "", None) for index in range(_count("gpus", gpus, 0))]
    uuids = list(gpus) if isinstance(gpus, Iterable) and not isinstance(gpus, str) else [gpus]
    for uuid in uuids:
        if not isinstance(uuid, str) or not uuid.startswith("GPU-"):
            raise InputError(f"gpus has {uuid!r}: give a whole number, or UUIDs as `nvidia-smi -L` has them, GPU-...")
    if len(set(uuids)) < len(uuids):
        raise InputError("gpus has a UUID twice: each GPU has its own")
    return [GPU(index, uuid, "", None) for index, uuid in enumerate(uuids)]


def _text(mask, gpus):
    if mask is not None and not isinstance(mask, str):
        raise InputError(f"mask={mask!r} is no text: give one as CUDA_VISIBLE_DEVICES has it, such as '0,1'")
    if mask and mask.startswith("GPU-") and isinstance(gpus, Integral):
        raise InputError(f"mask={mask!r} names UUIDs: give gpus=[...], the UUIDs of the node's GPUs, not a number")
    return mask


def _count(name, value, least):
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= value <= MOST:
        raise InputError(f"{name}={value!r}: give a whole number from {least} to {MOST}")
    return int(value)
