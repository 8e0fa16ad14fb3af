"""What every step runs on: files written whole, folder locks, logs, errors of disks and servers."""
