"""Which rank has read which samples, how often, and how much each of them counts."""

import math
from collections import Counter
from numbers import Real

from ddp_lab.errors import InputError
from ddp_lab.figures import inputs
from ddp_lab.figures.style import BROKEN, FINE, INK, new_figure, style, text_on
from ddp_lab.launch.output import rank_color, text_color

MOST_SAMPLES = 64  # boxes in a row, which a page still shows
WIDEST = 5  # characters that a box has room for


def samples(runs, times=False, of=None):
    """Which rank has read which samples: below each other a panel for each entry of `{title: run}`.

    Drawn from the lists of sample numbers, from 0 on, that the ranks have logged as `samples`, one list a step. A box
    is a sample that this rank has read, the number in it the step (several, where it has read it several times; `5×`
    where these have no room); an empty box is one that it has not. Where records have an `epoch` too, and a run has
    several, each epoch has its rows.
    times: a last row (of each epoch) says how often each sample was read by all ranks together; what was not read
    once stands out. of: how many samples there are, so that those which nobody has read are drawn as well; else up to
    the last that was read. InputError if there is no panel, or no rank of a run has logged such lists.
    """
    inputs.panels(runs, "samples", "{title: run}")
    panels = {title: _rows(run, times) for title, run in runs.items()}
    count = 1 + max(sample for rows in panels.values() for row in rows for sample in row.boxes)
    if of is not None:
        count = max(count, min(inputs.count(of, "samples", "of"), MOST_SAMPLES))
    heights = [rows[-1].place + 1 for rows in panels.values()]
    size = (6.4, 0.36 * sum(heights) + 0.5 * len(heights) + 0.5)
    with style():
        figure, all_axes = new_figure(list(panels), size=size, heights=heights, sharex=True)
        for axes, rows in zip(all_axes, panels.values(), strict=True):
            for row in rows:
                for sample in range(count):
                    row.draw(axes, sample)
            axes.set(xlim=(-0.55, count - 0.45), ylim=(rows[-1].place + 0.55, -0.55))
            axes.set_xticks(range(count))
            axes.set_yticks([row.place for row in rows], [row.label for row in rows], fontweight="bold")
            for label, row in zip(axes.get_yticklabels(), rows, strict=True):
                label.set_color(row.ink)
                if row.epoch is not None:
                    look = {"textcoords": "offset points", "ha": "right", "va": "center", "fontweight": "bold"}
                    place = {"xy": (0, row.place), "xycoords": ("axes fraction", "data"), "xytext": (-52, 0)}
                    axes.annotate(f"epoch {row.epoch}", **place, **look)
        often = any(text.get_text().endswith("×") for axes in all_axes for text in axes.texts)
        words = ["in its box: the step in which it is read"] + ["5×: five times"] * often
        words += ["times: by all ranks"] * times
        axes.set_xlabel(f"sample ({'; '.join(words)})")
    return figure


def weights(runs, title="How much each sample counts"):
    """How much each sample counts in a result: below each other a panel for each entry of `{title: run}`.

    Drawn from what rank 0 has logged last as `weights`, a number for each sample, which add up to 1. A bar says as how
    many samples it counts: 1 where it has its due, 1/n of n. InputError if there is no panel, or rank 0 of a run has
    logged no such list.
    """
    inputs.panels(runs, "weights", "{title: run}")
    found = {name: _weights(run) for name, run in runs.items()}
    count = max(map(len, found.values()))
    with style():
        figure, all_axes = new_figure(list(found), size=(6.4, 1.15 * len(found) + 0.75), sharex=True, sharey=True)
        for axes, own in zip(all_axes, found.values(), strict=True):
            for sample, weight in enumerate(own):
                due = weight * len(own)
                right = math.isclose(due, 1, abs_tol=1e-3)
                color = FINE if right else BROKEN
                inside = due > 0.3
                axes.bar(sample, due, color=color, width=0.7)
                where = {"textcoords": "offset points", "ha": "center", "va": "bottom", "fontsize": 9}
                where |= {"color": text_on(color) if inside else INK, "fontweight": "normal" if right else "bold"}
                axes.annotate(f"{due:.3g}", (sample, 0 if inside else due), (0, 3), **where)
            axes.axhline(1, color=INK, linewidth=1, linestyle=":", zorder=0)
            axes.set_xlim(-0.55, count - 0.45)
            axes.set_xticks(range(count))
            axes.set_yticks([0, 1])
            axes.margins(y=0.1)
        axes.set_xlabel("sample")
        figure.supylabel("counts as so many samples", fontsize=10, color=INK)
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
    return figure


class _Row:
    """A row of boxes: of a rank in an epoch, or of the times that all ranks have read."""

    def __init__(self, place, label, boxes, color=None, epoch=None):
        self.place, self.label, self.boxes, self.color = place, label, boxes, color
        self.epoch = epoch  # written before the first row of each, None in the others
        self.ink = text_color(color) if color else INK

    def draw(self, axes, sample):
        if self.color:
            steps = self.boxes.get(sample, [])
            text = ",".join(map(str, steps))
            text = text if len(text) <= WIDEST else f"{len(steps)}×"
            _box(axes, sample, self.place, text, self.color if steps else None)
            return
        times = self.boxes[sample]
        look = {"color": INK} if times == 1 else {"color": BROKEN, "fontweight": "bold", "fontsize": 11}
        axes.text(sample, self.place, str(times), ha="center", va="center", **look)


def _rows(run, times):
    """The rows of a panel: for each epoch one of each rank, and one of the times if they are asked for."""
    epochs = _reads(run)
    rows, place = [], 0
    for epoch, ranks in epochs.items():
        for number, (rank, steps) in enumerate(ranks.items()):
            begins = len(epochs) > 1 and number == 0
            rows.append(_Row(place, f"rank {rank}", steps, rank_color(rank), epoch if begins else None))
            place += 1
        if times:
            read = Counter()
            for own in ranks.values():
                read.update({sample: len(steps) for sample, steps in own.items()})
            rows.append(_Row(place, "times", read))
            place += 1
        place += 0.4  # between two epochs
    return rows


def _reads(run):
    """{epoch: {rank: {sample: [steps in which it was read]}}} of the lists that the ranks logged as `samples`."""
    found, ranks = {}, [rank.rank for rank in getattr(run, "ranks", [])]  # also one that has logged nothing
    for rank, number, record in _records(run):
        ranks.append(rank)
        listed = record.get("samples")
        for sample in listed if isinstance(listed, list) else []:
            if isinstance(sample, Real) and 0 <= sample < MOST_SAMPLES and sample == int(sample):
                own = found.setdefault(record.get("epoch"), {}).setdefault(rank, {})
                own.setdefault(int(sample), []).append(record.get("step", number))
    if not found:
        raise InputError("no rank has logged sample numbers: worker.log(step=step, samples=[...]), one list a step")
    return {epoch: {rank: own.get(rank, {}) for rank in sorted(set(ranks))} for epoch, own in found.items()}


def _records(run):
    """(rank, number of the record, the record) of all records; of a mere frame() each row is one."""
    if hasattr(run, "ranks"):
        for rank in run.ranks:
            yield from ((rank.rank, number, record) for number, record in enumerate(rank.records))
        return
    frame = inputs.run(run, "samples").frame()
    for rank, step, name, value in zip(frame["rank"], frame["step"], frame["name"], frame["value"], strict=True):
        yield int(rank), step, {name: value}


def _weights(run):
    """The list of numbers that rank 0 has logged last as `weights`."""
    lists = [record["weights"] for _, _, record in _of_rank_0(inputs.run(run, "weights")) if "weights" in record]
    if not lists or not isinstance(lists[-1], list) or not all(isinstance(w, Real) for w in lists[-1]) or not lists[-1]:
        raise InputError("rank 0 has logged no weights: worker.log(weights=[...]), a number for each sample")
    if len(lists[-1]) > MOST_SAMPLES:
        raise InputError(f"weights: there are {len(lists[-1])} samples, and a page shows {MOST_SAMPLES}")
    return lists[-1]


def _of_rank_0(run):
    return [entry for entry in _records(run) if entry[0] == 0]


def _box(axes, column, row, text, color):
    from matplotlib.patches import FancyBboxPatch

    box = FancyBboxPatch((column - 0.37, row - 0.37), 0.74, 0.74, boxstyle="round,pad=0,rounding_size=0.12")
    if color:
        box.set(facecolor=color, edgecolor="none")
        look = {"color": text_on(color), "ha": "center", "va": "center", "fontweight": "bold"}
        axes.text(column, row, text, fontsize=9 if "," not in text else 6, **look)
    else:
        box.set(facecolor="none", edgecolor=INK, alpha=0.35, linewidth=0.8)
    axes.add_patch(box)
