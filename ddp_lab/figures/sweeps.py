"""How long a step takes for each of several settings, beside the time that it would take if nothing were hidden."""

from ddp_lab.errors import InputError
from ddp_lab.figures import inputs
from ddp_lab.figures.costs import duration
from ddp_lab.figures.style import FINE, INK, new_figure, style


def sweep(seconds, alone, sending, notes=None, title="A step for each bucket_cap_mb", label="bucket_cap_mb (MiB)"):
    """A bar for each entry of `{setting: seconds of a step}`, and two lines: computing alone, and that and sending.

    `alone`: seconds of a step that sends nothing; `sending`: seconds of sending all with nothing else to do. What a bar
    lacks to the upper line is dotted: it was saved. `notes`: {setting: a text below its name}. InputError for anything
    else.
    """
    form = "{setting: seconds}, alone=seconds, sending=seconds"
    for value in inputs.panels(seconds, "sweep", form).values():
        inputs.number(value, "sweep", form, above=0)
    for value in (alone, sending):
        inputs.number(value, "sweep", form, above=0)
    if notes is not None and (not isinstance(notes, dict) or set(notes) != set(seconds)):
        names = ", ".join(map(str, seconds))
        raise InputError(f"sweep(): notes={inputs.brief(notes)}: give a text for each of {names}.")
    whole = alone + sending
    with style():
        figure, (axes,) = new_figure([title], size=(6.4, 3.4))
        for place, value in enumerate(seconds.values()):
            axes.bar(place, 1000 * value, 0.7, color=FINE, linewidth=0)
            if value < whole:
                look = {"facecolor": "none", "edgecolor": INK, "linewidth": 1, "linestyle": (0, (1, 2))}
                axes.bar(place, 1000 * (whole - value), 0.7, bottom=1000 * value, **look)
            axes.text(place, 500 * value, duration(value), ha="center", va="center", color="#FFFFFF", fontweight="bold")
        right = len(seconds) - 0.5
        for name, value in (("computing alone", alone), ("computing,\nthen sending", whole)):
            axes.axhline(1000 * value, color=INK, linewidth=1.2)
            axes.annotate(name, (right, 1000 * value), xytext=(4, 0), textcoords="offset points", va="center")
        names = [f"{setting}\n{notes[setting]}" if notes else str(setting) for setting in seconds]
        axes.set(xlim=(-0.5, right), ylim=(0, 1100 * max(whole, *seconds.values())))
        axes.set_xticks(range(len(seconds)), names)
        axes.set(xlabel=label, ylabel="ms of a step (dotted: saved)")
    return figure
