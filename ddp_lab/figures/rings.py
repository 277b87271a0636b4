"""How an all-reduce comes about: which ranks are in each part of the sum, and what each rank has sent."""

import math
import textwrap

from ddp_lab.errors import InputError
from ddp_lab.figures import inputs
from ddp_lab.figures.collectives import exact_up_to, is_rounded
from ddp_lab.figures.style import BROKEN, INK, new_figure, style, text_on
from ddp_lab.launch.output import rank_color, text_color


def partial_sums(run, columns=4):
    """Which ranks' numbers are in each chunk of each rank: a panel for each round, so many beside each other.

    Drawn from the lists that the ranks have logged as `chunks`, one list a step, a number for each chunk, where rank r
    has handed in 10 ** r: its digits, from the right, say how often rank 0, 1, ... is in it. A box is a chunk. It has a
    field for each rank, filled and with the rank's number where that rank is in it; `x2` where it is in it twice, `?`
    where the number is no such sum, or a float so large that it may have been rounded: log whole numbers then, of a
    tensor of whole numbers or of float64. A frame marks what has changed in this round.
    InputError if no rank has logged such lists, or one has logged two in a step.
    """
    steps, ranks = _chunks(inputs.run(run, "partial_sums"))
    limit = exact_up_to(value for of_step in steps.values() for chunks in of_step.values() for value in chunks)
    width = max(len(chunks) for of_step in steps.values() for chunks in of_step.values())
    titles = ["start" if number == 0 else f"round {number}" for number in range(len(steps))]
    columns = min(inputs.count(columns, "partial_sums", "columns"), len(titles))
    empty = -len(titles) % columns
    rows = (len(titles) + empty) // columns
    panel = max(width * max(0.55, 0.15 * len(ranks)) + 0.5, 1.6)  # in inches; its title takes the rest
    size = (columns * panel + 0.6, rows * (0.34 * len(ranks) + 0.75))
    with style():
        figure, all_axes = new_figure([*titles, *[""] * empty], columns, size)
        before = {}
        for number, (axes, of_step) in enumerate(zip(all_axes, steps.values(), strict=False)):
            for row, rank in enumerate(ranks):
                for column, value in enumerate(of_step.get(rank, [])):
                    changed = number > 0 and before.get((rank, column)) != value
                    _chunk(axes, column, row, math.nan if is_rounded(value, limit) else value, ranks, changed)
                    before[rank, column] = value
            axes.set(xlim=(-0.55, width - 0.45), ylim=(len(ranks) - 0.45, -0.55))
            axes.set_xticks(range(width) if width > 1 else [])
            axes.set_xlabel("chunk" if width > 1 else "whole tensor")
            axes.set_yticks(range(len(ranks)), [f"rank {rank}" for rank in ranks] if number % columns == 0 else [])
            for label, rank in zip(axes.get_yticklabels(), ranks, strict=False):
                label.set(color=text_color(rank_color(rank)), fontweight="bold")
        for axes in all_axes[len(titles) :]:
            axes.set_axis_off()
    return figure


def _chunks(run):
    """({step: {rank: [number of each chunk]}}, ranks) of the lists that the ranks logged as `chunks`."""
    frame = run.frame()
    steps = {}
    logged = frame[frame["name"] == "chunks"].sort_values("step", kind="stable")
    for rank, step, value in zip(logged["rank"], logged["step"], logged["value"], strict=True):
        if isinstance(value, list) and all(isinstance(number, (int, float)) for number in value):
            of_step = steps.setdefault(step if step == step else None, {})  # NaN is no step, and equals no other NaN
            if rank in of_step:
                raise InputError(
                    f"partial_sums(): rank {rank} has logged two lists of chunks in step {step}. Log one in each: "
                    "worker.log(step=number, chunks=[...]), with a number that grows."
                )
            of_step[int(rank)] = value
    if not any(chunks for of_step in steps.values() for chunks in of_step.values()):
        raise InputError("no rank has logged its chunks: worker.log(step=step, chunks=[...]), a number for each chunk")
    return steps, sorted(set(map(int, frame["rank"])))


def _chunk(axes, column, row, value, ranks, changed):
    from matplotlib.patches import FancyBboxPatch, Rectangle

    left, top, width, height = column - 0.42, row - 0.36, 0.84, 0.72
    counts = _counts(value, len(ranks))
    field = width / len(ranks)
    for place, (rank, count) in enumerate(zip(ranks, counts, strict=True)):
        spot = {"xy": (left + place * field, top), "width": field, "height": height}
        if count == 0:
            axes.add_patch(Rectangle(**spot, facecolor="none", edgecolor=INK, alpha=0.35, linewidth=0.6))
            continue
        color, text = (rank_color(rank), str(rank)) if count == 1 else (BROKEN, "?" if count is None else f"x{count}")
        axes.add_patch(Rectangle(**spot, facecolor=color, edgecolor="none"))
        look = {"color": text_on(color), "ha": "center", "va": "center", "fontweight": "bold", "fontsize": 7}
        axes.text(left + (place + 0.5) * field, row, text, **look)
    if changed:
        frame = FancyBboxPatch((left, top), width, height, boxstyle="round,pad=0.04,rounding_size=0.06")
        frame.set(facecolor="none", edgecolor=INK, linewidth=2)
        axes.add_patch(frame)


def _counts(value, ranks):
    """How often each rank is in this sum of powers of ten; None for each if it is no such sum."""
    if not (0 <= value < 10**ranks and value == int(value)):
        return [None] * ranks
    return [int(value) // 10**rank % 10 for rank in range(ranks)]


def traffic(runs, size):
    """What each rank has sent and received: a panel for each entry of `{title: run}`, all on one scale.

    Counted are the sends and receives in `run.collectives`; the number at a bar is its share of `size`, the bytes of
    the tensor that was reduced. InputError if there is no panel, or a run has no sends.
    """
    for run in inputs.panels(runs, "traffic", "{title: run}").values():
        inputs.run(run, "traffic", "ranks")
    inputs.number(size, "traffic", "the bytes of the tensor that was reduced", above=0)
    with style():
        width = 1.0 + sum(0.75 * len(run.ranks) for run in runs.values())
        figure, all_axes = new_figure(list(runs), len(runs), (width, 2.9), sharey=True)
        for axes, (title, run) in zip(all_axes, runs.items(), strict=True):
            calls = run.collectives
            if not (calls["op"] == "send").any():
                raise InputError(f"{title}: no rank has sent anything by send, isend or batch_isend_irecv.")
            totals = calls.groupby(["op", "rank"])["bytes"].sum()
            for rank in range(len(run.ranks)):
                for op, place in (("send", rank - 0.2), ("recv", rank + 0.2)):
                    height, color = int(totals.get((op, rank), 0)), rank_color(rank)
                    look = {"facecolor": color} if op == "send" else {"facecolor": "none", "hatch": "////"}
                    axes.bar(place, height, 0.34, edgecolor=color, linewidth=1.2, **look)
                    spot = {"ha": "center", "va": "bottom", "fontsize": 8, "fontweight": "bold"}
                    axes.annotate(f"{height / size:.3g}", (place, height), (0, 2), textcoords="offset points", **spot)
            axes.set_xticks(range(len(run.ranks)), [f"rank {rank}" for rank in range(len(run.ranks))])
            axes.margins(y=0.12)
            for label, rank in zip(axes.get_xticklabels(), range(len(run.ranks)), strict=True):
                label.set(color=text_color(rank_color(rank)), fontweight="bold", fontsize=9)
        all_axes[0].set_ylabel("bytes")
        words = f"filled: sent; hatched: received; the number: times the tensor's {size:,} bytes"
        figure.supxlabel(textwrap.fill(words, int(13 * width)), fontsize=9)  # in a narrow figure two lines
        figure._supxlabel.set_color(INK)
    return figure
