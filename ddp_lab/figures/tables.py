"""Tables of texts."""


def table(frame):
    """A pandas table of texts, shown with its columns beginning at the left and its texts as they are, no HTML."""
    start = {"selector": "th, td", "props": [("text-align", "left")]}
    shown = frame.style.format(escape="html").set_table_styles([start])
    return shown.format_index(escape="html").format_index(escape="html", axis="columns")
