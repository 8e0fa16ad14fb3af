"""HTML reports that open anywhere: one per evaluation, one per comparison."""
