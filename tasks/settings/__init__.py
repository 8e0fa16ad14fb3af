"""What an evaluation is asked for, checked when it is read."""
