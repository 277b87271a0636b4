"""What ranks have logged, as numbers over their steps: each function takes runs, and returns a matplotlib Figure."""

import math

from ddp_lab.errors import InputError
from ddp_lab.figures import inputs
from ddp_lab.figures.style import BROKEN, FINE, INK, label_ends, new_figure, style
from ddp_lab.launch.output import rank_color


def curves(run, name="loss", title=None):
    """One line per rank: what it logged as `name`, over its steps; where it is NaN the line has a gap.

    InputError if no rank has logged numbers under that name.
    """
    values = _values(run, name, "curves")
    with style():
        figure, (axes,) = new_figure([title or f"{name} on each rank"])
        _lines(axes, values)
        axes.set(ylabel=name)
        label_ends(axes)
    return figure


def bars(run, name, title=None):
    """One bar per rank, with its number: the last that it logged as `name`.

    InputError if no rank has logged numbers under that name.
    """
    values = _values(run, name, "bars")
    with style():
        figure, (axes,) = new_figure([title or f"{name} on each rank"])
        for place, (rank, (_, numbers)) in enumerate(values.items()):
            number = numbers[-1]
            height = number if math.isfinite(number) else 0
            axes.bar(place, height, color=rank_color(rank), width=0.6, label=f"rank {rank}")
            where = {"ha": "center", "va": "bottom" if height >= 0 else "top", "fontweight": "bold"}
            axes.annotate(
                f"{number:.4g}", (place, height), (0, 3 if height >= 0 else -3), textcoords="offset points", **where
            )
        axes.set_xticks(range(len(values)), [f"rank {rank}" for rank in values])
        axes.set(ylabel=name, xlim=(-0.6, max(len(values), 3) - 0.4))
        axes.margins(y=0.15)
    return figure


def apart(panels, share=True):
    """How far the ranks are from each other: beside each other a panel for each entry of `{title: (run, name)}`.

    One line per rank, what it logged as `name` over its steps; what lies between the ranks is shaded, and the
    distance in the last step that all have logged is written there. `(run, name, label)` writes `label` at the axis,
    where the name alone says too little. Panels of the same `name` share their scale, unless `share=False`.
    InputError as in curves(), or if there is no panel.
    """
    for panel in inputs.panels(panels, "apart", "{title: (run, name)}").values():
        inputs.run_and_name(panel, "apart", most=3)
    found = {title: _values(run, name, "apart") for title, (run, name, *_) in panels.items()}
    labels = [panel[-1] for panel in panels.values()]
    share = share and len({name for _, name, *_ in panels.values()}) == 1
    with style():
        size = (max(6.4, 3.6 * len(panels)), 3.2)
        figure, all_axes = new_figure(list(panels), len(panels), size, sharey=share)
        for axes, values in zip(all_axes, found.values(), strict=True):
            _lines(axes, values)
            columns = [dict(zip(*value, strict=True)) for value in values.values()]
            steps = sorted(set(columns[0]).intersection(*columns))
            _shade(axes, steps, [[column[step] for step in steps] for column in columns])
            if steps and len(columns) > 1:
                last = [column[steps[-1]] for column in columns]
                distance = max(last) - min(last)
                text = f"{distance:.2g} apart at the end" if distance else "no distance at the end"
                spot = {"textcoords": "offset points", "ha": "right", "va": "top", "fontweight": "bold"}
                axes.annotate(text, (1, 1), (-12, -2), xycoords="axes fraction", **spot)
            axes.margins(y=0.2)
        for axes, label in list(zip(all_axes, labels, strict=True))[: 1 if share else None]:
            axes.set_ylabel(label)
        for axes in all_axes:  # only now: where panels share a scale, each has changed it
            label_ends(axes)
    return figure


def _shade(axes, steps, lines):
    """Shade what lies between lines over the same steps, also where they cross between two steps."""
    import numpy

    if steps:
        places = numpy.union1d(steps, numpy.linspace(steps[0], steps[-1], 50 * len(steps)))
        between = [numpy.interp(places, steps, line) for line in lines]
        low, high = numpy.min(between, 0), numpy.max(between, 0)
        axes.fill_between(places, low, high, color=INK, alpha=0.2, linewidth=0)


def twin(runs, name="weights_to_twin", rounding=1e-12, title="How far from one process with the whole batch"):
    """How far several runs are from what they should equal: a row for each entry of `{label: run}`, a dot per step.

    Drawn is the largest difference that any rank has logged as `name` in a step, on a log scale; the number at the
    right is that of the last step. Up to `rounding` the runs count as equal. A difference of exactly 0, which has no
    place on a log scale, lies on the left edge, marked 0.
    InputError as in curves(), or if there is no run.
    """
    inputs.panels(runs, "twin", "{label: run}")
    found = {label: _values(run, name, "twin") for label, run in runs.items()}
    floor = rounding / 1e6
    with style():
        figure, (axes,) = new_figure([title], size=(6.4, 0.3 * len(runs) + 1.3))
        for row, (label, values) in enumerate(found.items()):
            largest = {}
            for steps, numbers in values.values():
                for step, number in zip(steps, numbers, strict=True):
                    largest[step] = max(abs(number), largest.get(step, 0))
            differences = [largest[step] for step in sorted(largest)]
            color = FINE if max(differences) <= rounding else BROKEN
            shown = [max(difference, floor) for difference in differences]
            axes.plot(shown, [row] * len(shown), "o-", color=color, markersize=4, linewidth=1, alpha=0.8, label=label)
            axes.annotate(
                f"{differences[-1]:.1g}", (1.01, row), xycoords=axes.get_yaxis_transform(), color=color,
                va="center", fontweight="bold",
            )  # fmt: skip
        axes.set_xscale("log")
        axes.set(xlim=(floor / 2, 30), ylim=(len(runs) - 0.5, -0.5))
        axes.axvspan(floor / 2, rounding, color=INK, alpha=0.12, linewidth=0)
        ticks = [10.0**power for power in range(round(math.log10(floor)) + 3, 2, 3)]
        axes.set_xticks([floor, *ticks], ["0", *(f"{tick:g}" for tick in ticks)])
        axes.minorticks_off()
        axes.set_yticks(range(len(runs)), list(runs))
        shaded = f"shaded: rounding, up to {rounding:.0e}; left edge: exactly 0"
        axes.set_xlabel(f"largest difference of a rank from the twin, a dot for each step, log scale\n({shaded})")
        above = {"xycoords": axes.transAxes, "textcoords": "offset points", "va": "bottom", "fontsize": 9}
        axes.annotate("last step", (1.01, 1), (0, 1), **above)
    return figure


def _values(run, name, call):
    """{rank: (steps, numbers)} of what the ranks logged as `name`, in order."""
    frame = inputs.run(run, call).frame()
    rows = frame[frame["name"] == name]
    values = {}
    for rank, step, value in zip(rows["rank"], rows["step"], rows["value"], strict=True):
        if isinstance(value, (int, float)):
            steps, numbers = values.setdefault(int(rank), ([], []))
            steps.append(step)
            numbers.append(float(value))
    if not values:
        logged = ", ".join(dict.fromkeys(map(str, frame["name"]))) or "nothing"
        raise InputError(f"no rank has logged numbers as {name!r}; logged: {logged}")
    return dict(sorted(values.items()))


def _lines(axes, values):
    """One line per rank of {rank: (steps, numbers)}."""
    same = len(values) > 1 and all(value == values[min(values)] for value in values.values())
    for place, (rank, (steps, numbers)) in enumerate(values.items()):
        # One line over another would hide it: where all coincide, each draws its own pieces of a striped line.
        stripes = (place * 3, (3, 3 * (len(values) - 1))) if same else "solid"
        marker = "o" if len(steps) == 1 else None  # a line of one point would not be seen
        axes.plot(steps, numbers, color=rank_color(rank), linestyle=stripes, marker=marker, label=f"rank {rank}")
    axes.set(xlabel="step")
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
