"""The metrics of a version, each defined once: what it is, how it is made of rows, and where it is shown."""
