"""What people's models return, read by structure and name into the parameters of a family.

Nothing here imports the packages whose objects it reads, nor anything of ours: NumPy and the standard library alone, so
that the same files read in the environment that was logged with a model.
"""
