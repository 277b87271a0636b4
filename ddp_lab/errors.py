"""The errors that a learner meets: typed, few, and shown as one clear text."""


class LabError:
    """Mix-in for errors whose message says it all: what was wrong, with the value, and what to do.

    No exception by itself: the stop button's is a KeyboardInterrupt, which `except Exception` must not catch.
    """

    def __str__(self):
        return " ".join(str(arg) for arg in self.args)

    def _render_traceback_(self):
        """The lines that IPython shows for a traceback: frames of the course's own code help nobody."""
        from ddp_lab.launch.output import RED, colored, dressed

        return f"{colored(type(self).__name__, RED)}: {dressed(str(self))}".splitlines()


class InputError(LabError, ValueError):
    """Something that the caller passed cannot be used; the message names the value and the cure."""
