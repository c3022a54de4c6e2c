"""The infinite-width theory: covariances of tokens run through a placement's own equation."""
