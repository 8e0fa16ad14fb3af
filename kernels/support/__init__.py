"""How usual an input is among the rows of a labelled split, and how many of them speak there."""
