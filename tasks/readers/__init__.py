"""Readers of models: how the models of a library are asked, and what they return is read as a family's parameters.

Each library has a ``Reader`` (``base``) under the entry point group ``congruence.readers``: ours are in this folder,
others in packages of their own. Nothing here imports the packages whose objects it reads, nor anything of ours beyond
this folder: NumPy and the standard library, so that the same files read in the environment logged with a model.
"""
