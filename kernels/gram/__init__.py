"""The Gram matrix of an input kernel: an operator, its tiles and columns, landmarks, and the leading spectrum."""
