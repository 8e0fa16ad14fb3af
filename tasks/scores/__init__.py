"""The scores of one version on one split: of its points, in all, and what each number means."""
