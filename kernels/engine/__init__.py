"""The engine: congruence of a split by passes over its rows in blocks, one block in memory or many on a cluster.

A block of rows adds to sums whose size does not depend on how many rows there are (``blocks``):

    inputs            C'C of the landmarks' columns                      -> the system and its leading spectrum U
    right-hand sides  C'[Delta, probes], U'diag(v)U, U'Delta* drawn      -> weights (m, r), the null
    scores            values, noise floor, p-values of points            -> certificate, means, p-value of the split
    influence         influence of every reference row                   -> standard errors

A short split has all its rows as landmarks and is exact: K + n lambda I is factored (``system``). Random numbers are
functions of a row's position, so that no number depends, beyond rounding, on how rows are cut into blocks or on who
works on them.
"""
