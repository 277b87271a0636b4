"""Faults that people really meet, each with its cure beside it: `ID.py` and `ID_cured.py`."""
