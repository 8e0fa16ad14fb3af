"""Which inputs to withhold: those nobody can vouch for, and those where the version is wrong, if withholding helps."""
