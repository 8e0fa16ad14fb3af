"""One call from arrays or a frame to the report: the functions that ``import congruence`` gives."""
