"""Congruence of a split that is never whole in one memory: what a block of rows adds, and what is made of the sums.

The Nystrom answer on m landmarks, C = K[:, landmarks] and e = C (mu W + C'C)^-1 C'Delta, touches rows only in sums over
them (``sums``) and in what each row then scores. So a split is passed over block by block:

    inputs            C'C, k(x, x)                                    -> factor of mu W + C'C, leading spectrum U
    right-hand sides  C'[Delta, probes], U'diag(v)U, U'Delta* drawn   -> weights (m, r), coefficients of drawn targets
    scores            values, noise floor, p-values of points          -> certificate, means, p-value of the split
    influence         influence of every reference row                -> standard errors

Sums are of size m or k on a side, whatever n is. Random numbers are functions of a row's position (``keyed``), so that
no number depends, beyond rounding, on how rows are cut into blocks or who works on them.
"""
