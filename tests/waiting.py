"""Waiting for a condition, with a limit."""

import time


def wait_for(condition, seconds, what, every=0.05):
    """Wait until `condition()` is true and return its value; AssertionError naming `what` after `seconds`."""
    limit = time.monotonic() + seconds
    while True:
        if value := condition():
            return value
        assert time.monotonic() < limit, f"not within {seconds} s: {what}"
        time.sleep(every)
