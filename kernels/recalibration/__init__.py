"""What predictions would be if they were recalibrated where they are wrong: the map, its fit, and a hold-out."""
