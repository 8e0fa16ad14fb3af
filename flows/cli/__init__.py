"""The `congruence` command: its options, console, progress and tables."""
