"""What the devices of DataParallel receive, send and hold: each function takes pandas tables, and returns a Figure."""

from ddp_lab.errors import InputError
from ddp_lab.figures import inputs
from ddp_lab.figures.style import BROKEN, FINE, INK, label_ends, new_figure, style
from ddp_lab.launch.output import rank_color

KINDS = {
    "parameters": "#4B5D78",
    "buffers": "#B9A44C",
    "inputs": "#8FA9C4",
    "outputs": "#7D5BA6",
    "gradients": BROKEN,
}
"""The colours of what a device holds."""


def phases(ledger, title=None):
    """A panel for each phase of a step: what each device received, upward, and sent, downward, in bytes.

    `ledger`: a table of device, phase, bytes_in, bytes_out, as VirtualDataParallel.ledger is. The devices have the
    colours of the ranks of their numbers. InputError if nothing has moved.
    """
    inputs.table(ledger, "phases", ["device", "phase", "bytes_in", "bytes_out"], "model.ledger")
    if not len(ledger):
        raise InputError("phases: the ledger has no rows. Call the model first.")
    most = max(ledger["bytes_in"].max(), ledger["bytes_out"].max())
    if not most:
        raise InputError("phases: nothing has moved. Call the model first; with one device nothing ever does.")
    names = list(dict.fromkeys(ledger["phase"]))
    with style():
        figure, panels = new_figure(names, len(names), (2.5 * len(names), 3.4), sharey=True)
        for axes, name in zip(panels, names, strict=True):
            rows = ledger[ledger["phase"] == name]
            for device, received, sent in zip(rows["device"], rows["bytes_in"], rows["bytes_out"], strict=True):
                for number, sign in ((received, 1), (sent, -1)):
                    axes.bar(device, sign * number, color=rank_color(device), width=0.7)
                    if number:
                        where = {"ha": "center", "va": "bottom" if sign > 0 else "top", "fontsize": 8}
                        where |= {"xytext": (0, 2 * sign), "textcoords": "offset points"}
                        axes.annotate(_short(number), (device, sign * number), **where)
            axes.axhline(0, color=INK, linewidth=1)
            axes.set(xlabel="device", ylim=(-1.2 * most, 1.2 * most))
            axes.set_xticks(list(rows["device"]))
        panels[0].set_yticks([-most, 0, most], [_short(most), "0", _short(most)])
        panels[0].set_ylabel("bytes: sent below, received above")
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold", color=INK)
    return figure


def held(peaks):
    """What each device held, in bytes: a panel for each `{title: peak}`, a stacked bar for each device.

    `peak`: a table with a row for each device and columns parameters, buffers, inputs, outputs, gradients, as
    VirtualDataParallel.peak is. The number on a bar is the whole; of more than four devices the first and the last have
    it. InputError if there is no panel, or no row in one.
    """
    for peak in inputs.panels(peaks, "held", "{title: peak}").values():
        if not len(inputs.table(peak, "held", KINDS, "{title: model.peak}")):
            raise InputError("held: a peak has no rows. Give {title: model.peak}.")
    with style():
        size = (max(6.4, 3.2 * len(peaks)), 3.4)
        figure, panels = new_figure(list(peaks), len(peaks), size, sharey=True)
        for axes, peak in zip(panels, peaks.values(), strict=True):
            for place, (_, row) in enumerate(peak.iterrows()):
                bottom = 0
                for kind, color in KINDS.items():
                    axes.bar(place, row[kind], bottom=bottom, color=color, width=0.75, label="" if place else kind)
                    bottom += row[kind]
                if len(peak) <= 4 or place in (0, len(peak) - 1):  # narrow bars: the first and the last
                    axes.annotate(
                        _short(bottom), (place, bottom), (0, 2), textcoords="offset points", ha="center", va="bottom",
                        fontsize=8,
                    )  # fmt: skip
            places = range(0, len(peak), 1 if len(peak) <= 8 else 5)
            axes.set_xticks(places, [str(peak.index[place]) for place in places])
            axes.set(xlabel="device")
            axes.margins(y=0.12)
        panels[0].set_ylabel("bytes")
        panels[0].yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        shown = [kind for kind in KINDS if any(peak[kind].any() for peak in peaks.values())]
        handles = dict(zip(KINDS, panels[0].containers, strict=False))
        figure.legend(
            [handles[kind] for kind in shown[::-1]], shown[::-1], loc="outside right center", frameon=False,
            labelcolor=INK,
        )  # fmt: skip
    return figure


def carried(lines, measured=None, title=None):
    """How much a device carries in a step, over the number of devices: a line for each `{label: {devices: amount}}`.

    Amounts are in sizes of the model. `measured`: of the same form, drawn as dots in the colour of the line of that
    label: what was counted, on what was derived. InputError if there is no line, none of a measured label, or more
    than there are colours.
    """
    form = "{label: {devices: amount}}"
    measured = inputs.panels(measured, "carried", form) if measured else {}
    for line in (*inputs.panels(lines, "carried", form).values(), *measured.values()):
        inputs.line(line, "carried", form)
    if unknown := [label for label in measured if label not in lines]:
        raise InputError(f"measured: there is no line {', '.join(map(repr, unknown))}.")
    colors = list(dict.fromkeys([BROKEN, FINE, *KINDS.values()]))
    if len(lines) > len(colors):
        raise InputError(f"carried(): {len(lines)} lines, and there are colours for {len(colors)}.")
    with style():
        figure, (axes,) = new_figure([title or "What one device carries in a step"], size=(7.2, 3.4))
        for color, (label, amounts) in zip(colors, lines.items(), strict=False):
            axes.plot(list(amounts), list(amounts.values()), color=color, label=label)
        for color, label in zip(colors, lines, strict=False):
            if label in measured:
                axes.scatter(list(measured[label]), list(measured[label].values()), color=color, s=36, zorder=3)
        axes.set(xlabel="devices", ylabel="weights and gradients\nin and out, in model sizes")
        axes.set_xticks(sorted({devices for amounts in lines.values() for devices in amounts if devices % 2 == 0}))
        axes.set_ylim(bottom=0)
        label_ends(axes)
        if measured:
            axes.annotate("dots: counted; lines: derived", (0, 0.97), (8, 0), xycoords="axes fraction",
                          textcoords="offset points", va="top", fontsize=9)  # fmt: skip
    return figure


def _short(number):
    """A number of bytes in three digits: 812, 9.6k, 38k, 1.2M."""
    for unit in ("", "k", "M", "G"):
        if number < 999.5:
            return f"{number:.0f}{unit}" if number >= 99.5 or not unit else f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g}T"
