"""What is wrong around evaluations, looked at before any: servers, workers, cards, disks, clocks, packages."""
