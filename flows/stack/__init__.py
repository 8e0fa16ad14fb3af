"""The whole topology as processes on loopback: what `congruence stack` starts."""
