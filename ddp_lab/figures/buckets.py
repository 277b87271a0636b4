"""DDP's buckets: what each holds, how large it is, and whether anything was left to compute when it was sent."""

from ddp_lab.errors import InputError
from ddp_lab.figures import inputs
from ddp_lab.figures.costs import volume
from ddp_lab.figures.style import BROKEN, FINE, new_figure, style

WIDE = 72
"""Letters of a small text that fit into a whole row."""


def buckets(strips, rank=0, title="What is sent, from the first bucket to the last"):
    """A row of boxes for each entry of `{name: (run, step)}`: a box for each bucket that a rank sent in that step.

    Drawn from what the lab "buckets" logs of each: `bytes`, the length of its box; `holds`, the parameters, of which
    the box has the layers; `ready` and `of`, how many gradients were computed when it was sent. A box has one colour
    where some were still to be computed, which may hide it, and another where none was. Where a box is narrow, texts
    that do not fit are left out. InputError for anything else, or a step in which the rank has logged no bucket.
    """
    form = "{name: (run, step)}, of runs of the lab buckets"
    found = {name: _sent(given, rank, form) for name, given in inputs.panels(strips, "buckets", form).items()}
    whole = max(sum(bucket["bytes"] for bucket in own) for own in found.values())
    with style():
        figure, (axes,) = new_figure([title], size=(7.2, 0.72 * len(found) + 1.2))
        for row, own in enumerate(found.values()):
            begin = 0
            for bucket in own:
                _box(axes, row, begin, bucket, whole)
                begin += bucket["bytes"]
        axes.set(xlim=(0, whole), ylim=(len(found) - 0.5, -0.5))
        axes.set_yticks(range(len(found)), found)
        ticks = [mib for mib in range(0, 1 + whole // 2**20, 1 + whole // (12 * 2**20))]
        axes.set_xticks([2**20 * mib for mib in ticks], ticks)
        axes.set_xlabel("MiB of gradients, in the order in which they are sent")
        _legend(figure)
    return figure


def _sent(given, rank, form):
    """The records of the buckets of this step."""
    inputs.run_and_name(given, "buckets", has="ranks")
    run, step = given
    own = next((one for one in run.ranks if one.rank == rank), None)
    if own is None:
        raise InputError(f"buckets(): there is no rank {inputs.brief(rank)} in this run of {len(run.ranks)}.")
    wanted = {"bytes", "holds", "ready", "of"}
    found = [record for record in own.records if wanted <= record.keys() and record.get("step") == step]
    if not found:
        raise InputError(f"buckets(): rank {rank} has logged no bucket in step {inputs.brief(step)}. Give {form}.")
    return found


def _box(axes, row, begin, bucket, whole):
    from matplotlib.patches import Rectangle

    hides = bucket["ready"] < bucket["of"]
    gap = 0.002 * whole  # so that boxes are told apart, on any ground
    size = max(bucket["bytes"] - gap, gap)
    axes.add_patch(Rectangle((begin, row - 0.42), size, 0.84, color=FINE if hides else BROKEN, linewidth=0))
    texts = [
        (-0.24, layers(bucket["holds"]), {"fontweight": "bold"}),
        (0.02, volume(bucket["bytes"]), {}),
        (0.26, f"at {bucket['ready']} of {bucket['of']}", {}),
    ]
    for place, text, look in texts:
        if len(text) <= WIDE * bucket["bytes"] / whole:
            middle = begin + bucket["bytes"] / 2
            axes.text(middle, row + place, text, ha="center", va="center", fontsize=8, color="#FFFFFF", **look)


def layers(names):
    """The layers of these parameters, each once, in their order: `5 4` of 5.bias, 5.weight, 4.bias."""
    return " ".join(dict.fromkeys(name.rpartition(".")[0] or name for name in names))


def _legend(figure):
    from matplotlib.patches import Patch

    marks = [Patch(color=FINE), Patch(color=BROKEN)]
    said = ["sent while gradients are still computed", "sent when all are there"]
    figure.legend(marks, said, loc="outside lower left", ncols=2, frameon=False)
