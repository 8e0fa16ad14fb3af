"""New inputs beside a labelled split: the same columns at another address, with or without targets."""

from __future__ import annotations

from congruence.tasks.data.formats import Format
from congruence.tasks.data.settings import SplitSettings


def new_inputs(labelled: SplitSettings, uri: str, *, name: str = "inputs") -> SplitSettings:
    """Settings of the inputs at ``uri``, read as ``labelled`` is. Key, target and slices are kept where they are there.

    Raises:
        SplitError: nothing that can be read at ``uri``.
    """
    read = labelled.model_copy(update={"uri": uri, "format": "auto", "name": name})
    form = Format.of(read)
    present = set(form.table([form.describe(path) for path in form.paths()]).schema.names)
    return read.model_copy(
        update={
            "key": read.key if read.key in present else None,
            "target": read.target if set(read.target_columns) <= present else None,
            "slices": [column for column in read.slices if column in present],
        }
    )
