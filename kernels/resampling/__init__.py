"""What a mean of scores is worth: grouped bootstraps, intervals, and tests of paired differences."""
