"""An evaluation: one plain function over stored shards, which everything that evaluates calls or stops within."""
