"""What more ranks bring: the efficiency that was measured, and what a model says of ranks that are not there."""

from ddp_lab.errors import InputError
from ddp_lab.figures import inputs
from ddp_lab.figures.costs import COLORS, MARKERS
from ddp_lab.figures.style import INK, label_ends, new_figure, style

FORM = "{label: {ranks: efficiency}}"


def efficiency(measured, model=None, cores=None, title="Efficiency: how much of the ranks' work is gained"):
    """Efficiency against ranks, a dot for each that was measured, over the lines of a model.

    measured, model: `{label: {ranks: efficiency}}`, an efficiency being the speed-up divided by the ranks, 1 the ideal;
    a label has one colour in both, and either may be empty. A model's line is drawn through up to the most ranks that
    were measured under its label; beyond, where nothing has tested it, it is broken, and "projection" is written at its
    end. cores: of the machine that was measured, on which more ranks than cores have to take turns: from there on the
    ideal line falls. InputError if there is nothing to draw, or it is no efficiency of a number of ranks.
    """
    measured, model = _lines(measured), _lines({} if model is None else model)
    labels = list(dict.fromkeys([*measured, *model]))
    if not labels:
        raise InputError(f"efficiency({{}}): there is nothing to draw. Give {FORM}.")
    if len(labels) > len(COLORS):
        raise InputError(f"efficiency(): {len(labels)} lines, and there are colours for {len(COLORS)}.")
    known = sorted({ranks for line in measured.values() for ranks in line})
    most = max(ranks for line in (*measured.values(), *model.values()) for ranks in line)
    with style():
        figure, (axes,) = new_figure([title], size=(6.8, 3.6))
        _ideal(axes, most, cores and inputs.count(cores, "efficiency", "cores"))
        for label, color, marker in zip(labels, COLORS, MARKERS, strict=False):
            _one(axes, label, measured.get(label, {}), model.get(label, {}), most, color, marker)
        axes.set(xscale="log", xlim=(0.93, most**1.02 if most > 1 else 2), xlabel="ranks", ylabel="efficiency")
        highest = max(y for line in (*measured.values(), *model.values()) for y in line.values())
        lowest = min((text.xy[1] - 0.13 for text in axes.texts), default=0)  # room for a text under its end
        axes.set(ylim=(min(0, lowest), max(1.08, 1.08 * highest)))
        ticks = sorted({*known, *(2**power for power in range(most.bit_length()))})
        axes.set_xticks(ticks, ticks)
        axes.minorticks_off()
        axes.yaxis.set_major_formatter("{x:.0%}")
        label_ends(axes)
    return figure


def _one(axes, label, dots, line, most, color, marker):
    """Dots, and the line over them: whole as far as there are dots, broken from there on."""
    tested = [ranks for ranks in line if ranks <= max(dots, default=0)]
    beyond = [ranks for ranks in line if ranks >= max(tested, default=0)]
    projected = len(beyond) > 1 or line and not tested
    text = f"{label}: projection" if projected else label
    end, height = list((line or dots).items())[-1]
    hidden = f"_{label}"
    shown = text if end == most else hidden  # label_ends() writes it

    axes.plot(dots.keys(), dots.values(), marker, color=color, label=hidden if line else shown, zorder=3)
    look = {"color": color, "linewidth": 1.6}
    if tested:
        axes.plot(tested, [line[n] for n in tested], label=hidden if projected else shown, **look)
    if projected:
        axes.plot(beyond, [line[n] for n in beyond], linestyle=(0, (3, 2)), label=shown, **look)
    if end < most:  # in the middle of the picture: above its end, or under it
        above = height > 0.5
        spot = {"textcoords": "offset points", "ha": "center", "va": "bottom" if above else "top"}
        axes.annotate(text, (end, height), (0, 9 if above else -9), color=color, fontweight="bold", **spot)


def _ideal(axes, most, cores):
    """The line that no rank's work is lost on; from `cores` on, it is the cores that are shared out."""
    spots = [1, *((cores,) if cores and cores < most else ())]
    if len(spots) > 1:  # a curve
        spots += [cores * (most / cores) ** (step / 50) for step in range(1, 51)]
    else:
        spots.append(most)
    heights = [min(1, cores / ranks) if cores else 1 for ranks in spots]
    label = f"ideal, {cores} core{'s' if cores > 1 else ''}" if cores and cores < most else "ideal"
    axes.plot(spots, heights, color=INK, linewidth=1, linestyle=":", label=label, zorder=1)


def _lines(given):
    """{label: {ranks: efficiency}}, each line in the order of its ranks."""
    if not isinstance(given, dict):
        raise InputError(f"efficiency(): {inputs.brief(given)} is no dict. Give {FORM}.")
    found = {}
    for label, line in given.items():
        if not isinstance(line, dict) or not line:
            raise InputError(f"efficiency(): {inputs.brief(line)} is no line of {label!r}. Give {FORM}.")
        for value in line.values():
            inputs.number(value, "efficiency", FORM, above=0)
        found[str(label)] = {inputs.count(ranks, "efficiency", "ranks"): line[ranks] for ranks in sorted(line)}
    return found
