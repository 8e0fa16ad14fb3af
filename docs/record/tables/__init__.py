"""The tables of the record, one a file: ``table(data)`` makes it, or None where its data is not there."""
