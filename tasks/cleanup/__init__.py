"""What earlier runs left in a home folder and in stores."""
