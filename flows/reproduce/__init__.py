"""The papers' own experiments, one flow each: `congruence reproduce`."""
