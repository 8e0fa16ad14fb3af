"""The kinds of models of the record, one a file: ``fit(table)`` as the package's documentation shows it."""
